"""Feature × platform, from the platforms' live tables."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, assert_never

from allmetal.platform.capabilities import FEATURES, capability
from allmetal.platform.contract import (
    Capability,
    DeviceInfo,
    Emulated,
    Native,
    Unknown,
    Unsupported,
)
from allmetal.platform.discover import Found, NotInstalled, discover
from allmetal.platform.pick import why_not

Word: TypeAlias = Literal["native", "emulated", "no", "unknown"]
Format: TypeAlias = Literal["table", "md", "json"]

ANY_DEVICE = DeviceInfo(index=0, name="any device", total_memory=0)
"""What a platform is asked about where it has no device: nothing special of one is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """`why` says by what, how, or why not, in the platform's words."""

    word: Word
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One platform.  `device` is what was asked about; `note` says what is wrong or missing.

    `cells` has every feature, or is empty where the plugin cannot be asked; `install` is what to
    type where it is not installed.
    """

    platform: str
    origin: str
    device: str = ""
    note: str = ""
    install: str = ""
    cells: Mapping[str, Cell]


@dataclass(frozen=True, slots=True, kw_only=True)
class Matrix:
    """Feature id -> what it is, and a column for each platform."""

    features: Mapping[str, str]
    columns: tuple[Column, ...]


def matrix(found: Iterable[Found] | None = None, *, live: bool = True) -> Matrix:
    """Every platform but pretended ones.

    `live` asks about the first device of each, where there is one; otherwise all are asked about
    a device nothing is known of, which gives the same answer on every machine.
    """
    shown = [f for f in (discover() if found is None else found) if not _pretends(f)]
    return Matrix(features=FEATURES, columns=tuple(_column(f, live) for f in shown))


def render_matrix(matrix: Matrix, format: Format = "table") -> str:
    """A table for a terminal, Markdown for the docs, or JSON."""
    formats: Mapping[Format, Callable[[Matrix], str]] = {
        "table": _table,
        "md": _markdown,
        "json": lambda m: json.dumps(to_json(m), indent=2),
    }
    return formats[format](matrix)


def to_json(matrix: Matrix) -> dict[str, Any]:
    """Plain values."""
    return {
        "features": dict(matrix.features),
        "platforms": {
            c.platform: {
                "origin": c.origin,
                "device": c.device,
                "note": c.note,
                "install": c.install,
                "features": {f: {"is": x.word, "why": x.why} for f, x in c.cells.items()},
            }
            for c in matrix.columns
        },
    }


def _pretends(found: Found) -> bool:
    return found.kind not in ("accelerator", "host", "")


def _column(found: Found, live: bool) -> Column:
    install = found.state.install if isinstance(found.state, NotInstalled) else ""
    device = found.devices[0] if live and found.devices else ANY_DEVICE
    note = why_not(found) if live or found.platform is None else ""
    cells: dict[str, Cell] = {}
    if found.platform is not None:
        try:
            table = found.platform.capabilities(device)
            cells = {feature: _cell(capability(table, feature)) for feature in FEATURES}
        except Exception as error:  # a stranger's code may raise anything
            note = f"its capabilities raised {type(error).__name__}: {error}"
    return Column(
        platform=found.name,
        origin=found.origin,
        device=device.name if cells else "",
        note=note,
        install=install,
        cells=cells,
    )


def _cell(answer: Capability) -> Cell:
    words: Mapping[type[Capability], Word] = {
        Native: "native",
        Emulated: "emulated",
        Unsupported: "no",
        Unknown: "unknown",
    }
    match answer:
        case Native(by=why) | Emulated(how=why) | Unsupported(reason=why) | Unknown(reason=why):
            return Cell(word=words[type(answer)], why=why)
        case other:
            assert_never(other)


def _word(column: Column, feature: str) -> str:
    return column.cells[feature].word if column.cells else "-"


def _table(matrix: Matrix) -> str:
    head = ["feature", *(c.platform for c in matrix.columns)]
    rows = [[f, *(_word(c, f) for c in matrix.columns)] for f in matrix.features]
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in (head, ["-" * width for width in widths], *rows)
    ]
    return "\n".join([*lines, "", *map(_about, matrix.columns)])


def _about(column: Column) -> str:
    parts = (column.origin, column.device, column.note, column.install)
    return f"{column.platform}: " + "; ".join(part for part in parts if part)


def _markdown(matrix: Matrix) -> str:
    head = ["feature", "what it is", *(c.platform for c in matrix.columns)]
    rows = [
        [f"`{f}`", doc, *(_word(c, f) for c in matrix.columns)]
        for f, doc in matrix.features.items()
    ]
    table = [head, ["---"] * len(head), *rows]
    lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in table]
    return "\n".join([*lines, *(line for c in matrix.columns for line in _section(c))])


def _section(column: Column) -> list[str]:
    """A platform's own words, features with the same ones together."""
    lines = ["", f"## {column.platform}", ""]
    if column.note:
        lines += [column.note.capitalize() + ".", ""]
    if column.install:
        lines += ["```bash", column.install, "```"]
    said: dict[Cell, list[str]] = {}
    for feature, cell in column.cells.items():
        said.setdefault(cell, []).append(f"`{feature}`")
    for cell, features in said.items():
        these = "every feature" if len(features) == len(column.cells) else ", ".join(features)
        lines.append(f"- **{cell.word}** {these}: {cell.why}")
    return lines


def reasons(matrix: Matrix, platform: str) -> Sequence[tuple[str, str]]:
    """(feature, one line) of a platform, for people who ask why."""
    (column,) = [c for c in matrix.columns if c.platform == platform]
    return [(feature, f"{cell.word}: {cell.why}") for feature, cell in column.cells.items()]
