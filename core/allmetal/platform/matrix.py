"""Feature × platform: what each platform says of itself, beside what the kit has found.

Everything that shows a matrix, in a terminal or in the docs, is made from `Matrix`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Any, Literal, TypeAlias, assert_never

from allmetal.errors import ConfigError
from allmetal.platform.capabilities import available, capability
from allmetal.platform.contract import (
    Capability,
    DeviceInfo,
    Emulated,
    Native,
    Unknown,
    Unsupported,
)
from allmetal.platform.discover import (
    Found,
    NotInstalled,
    discover,
    install_command,
    known_platforms,
)
from allmetal.platform.evidence import Evidence, State, latest, state_of
from allmetal.platform.features import REGISTRY, Feature
from allmetal.platform.pick import why_not

Word: TypeAlias = Literal["native", "emulated", "no"]

ANY_DEVICE = DeviceInfo(index=0, name="any device", total_memory=0)
"""What a platform is asked about where it has no device: nothing special of one is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """`why` says by what, how, or why not, in the platform's words.  `evidence`: see `state_of`;
    `proof` says where, when and with which versions a feature was tested, or what failed."""

    word: Word
    why: str
    evidence: State = ""
    proof: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One platform.  `device` is what was asked about; `note` says what is wrong or missing.

    `cells` has every feature, or is empty where the plugin cannot be asked; `install` is what to
    type where it is not installed, or where the matrix is of no machine in particular.  `runs` are
    the kit's latest, one a device.
    """

    platform: str
    origin: str
    device: str = ""
    note: str = ""
    install: str = ""
    cells: Mapping[str, Cell]
    runs: tuple[Evidence, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Matrix:
    """Feature id -> what it is, and a column for each platform."""

    features: Mapping[str, Feature]
    columns: tuple[Column, ...]


def matrix(
    found: Iterable[Found] | None = None,
    *,
    evidence: Sequence[Evidence] = (),
    live: bool = True,
) -> Matrix:
    """Every platform but pretended ones.

    `live` asks about the first device of each, where there is one; otherwise all are asked about
    a device nothing is known of, which gives the same answer on every machine.
    """
    shown = [f for f in (discover() if found is None else found) if not _pretends(f)]
    columns = tuple(_column(f, live, [e for e in evidence if e.platform == f.name]) for f in shown)
    return Matrix(features=REGISTRY, columns=columns)


def narrowed(
    matrix: Matrix, platforms: Collection[str] = (), features: Collection[str] = ()
) -> Matrix:
    """Only these, all where none is named.  A feature may be named by its kind: `quant`.

    Raises ConfigError for a name there is none of.
    """
    names = [column.platform for column in matrix.columns]
    _check("platform", platforms, names)
    kinds = dict.fromkeys(name.partition(".")[0] for name in matrix.features)
    _check("feature", features, [*matrix.features, *kinds])
    kept = {
        name: feature
        for name, feature in matrix.features.items()
        if not features or name in features or name.partition(".")[0] in features
    }
    columns = (c for c in matrix.columns if not platforms or c.platform in platforms)
    return Matrix(
        features=kept,
        columns=tuple(
            replace(c, cells={f: cell for f, cell in c.cells.items() if f in kept}) for c in columns
        ),
    )


def cell_of(answer: Capability) -> Cell:
    """What nothing was said of counts as not had."""
    match answer:
        case Native(by=why):
            return Cell(word="native", why=why)
        case Emulated(how=why):
            return Cell(word="emulated", why=why)
        case Unsupported(reason=why) | Unknown(reason=why):
            return Cell(word="no", why=why)
        case other:
            assert_never(other)


def to_json(matrix: Matrix) -> dict[str, Any]:
    """Plain values."""
    return {
        "features": {name: feature.doc for name, feature in matrix.features.items()},
        "platforms": {
            c.platform: {
                "origin": c.origin,
                "device": c.device,
                "note": c.note,
                "install": c.install,
                "features": {
                    f: {
                        "is": x.word,
                        "why": x.why,
                        "evidence": x.evidence,
                        "proof": list(x.proof),
                    }
                    for f, x in c.cells.items()
                },
            }
            for c in matrix.columns
        },
    }


def _check(what: str, asked: Collection[str], known: Sequence[str]) -> None:
    for name in asked:
        if name not in known:
            close = get_close_matches(name, known, n=3) or known
            raise ConfigError(
                f"no {what} is called {name!r}", hint=f"there are: {', '.join(close)}"
            )


def _pretends(found: Found) -> bool:
    return found.kind not in ("accelerator", "host", "")


def _column(found: Found, live: bool, evidence: Sequence[Evidence]) -> Column:
    install = found.state.install if isinstance(found.state, NotInstalled) else ""
    if not live and found.name in known_platforms():
        install = install_command(found.name)
    device = found.devices[0] if live and found.devices else ANY_DEVICE
    note = why_not(found) if live or found.platform is None else ""
    cells: dict[str, Cell] = {}
    if found.platform is not None:
        try:
            table = found.platform.capabilities(device)
            cells = {f: _known(f, capability(table, f), evidence) for f in REGISTRY}
        except Exception as error:  # a stranger's code may raise anything
            note = f"its capabilities raised {type(error).__name__}: {error}"
    return Column(
        platform=found.name,
        origin=found.origin,
        device=device.name if cells else "",
        note=note,
        install=install,
        cells=cells,
        runs=tuple(latest(evidence)),
    )


def _known(feature: str, answer: Capability, evidence: Sequence[Evidence]) -> Cell:
    """A platform's word on a feature, with what is known of it."""
    claimed = None if isinstance(answer, Unknown) else available(answer)
    if isinstance(answer, Native):
        evidence = [each for each in evidence if feature not in each.emulated]
    state = state_of(feature, claimed, evidence)
    return replace(cell_of(answer), evidence=state, proof=_proof(feature, state, evidence))


def _proof(feature: str, state: State, evidence: Sequence[Evidence]) -> tuple[str, ...]:
    if state not in ("tested", "emulated", "schema-checked", "compiled", "failing"):
        return ()
    lines = []
    for each in latest(evidence):
        tally = each.features.get(feature)
        if tally is None or not (tally.passed or tally.failed):
            continue
        what = f"{tally.failed} of {tally.failed + tally.passed} tests failed"
        if not tally.failed:
            what = f"{tally.passed} tests passed"
        how = "" if each.kind == "run" else f" ({each.kind})"
        lines.append(f"{what}{how}: {each.says(feature)}")
    return tuple(lines)
