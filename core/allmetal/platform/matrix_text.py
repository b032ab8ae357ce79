"""A matrix in a terminal, as Markdown, or as JSON."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Mapping
from itertools import groupby

from allmetal.platform.evidence import Evidence, State
from allmetal.platform.matrix import Cell, Column, Matrix, Word, to_json

MARKS: Mapping[State, str] = {
    "tested": "✓",
    "emulated": "◐",
    "schema-checked": "◔",
    "compiled": "◌",
    "failing": "✗",
    "declared": "○",
    "untested": "·",
    "": "",
}
LEGEND: Mapping[State, str] = {
    "tested": "tests of the conformance kit passed and none failed",
    "emulated": "they passed where the host computed for the device, below the vendor's software "
    "or by interpreting kernels",
    "schema-checked": "calls were held against the vendor's declarations, and nothing computed",
    "compiled": "kernels were compiled for the device, and nothing ran",
    "failing": "a test failed",
    "declared": "the platform says so, and no test on record ran",
    "untested": "nothing was said and nothing tested",
}


def as_table(matrix: Matrix, width: int = 0) -> str:
    """A grid; with reasons where only one platform or one feature is left.  `width`: characters of
    a line, which words are shortened and lines are broken for; 0: as many as it takes."""
    if len(matrix.columns) == 1 or len(matrix.features) == 1:
        parts = [_reasons(matrix, column) for column in matrix.columns]
        return "\n\n".join(_broken(part, width) for part in parts if part)
    grid = _grid(matrix)
    legend = ", ".join(f"{MARKS[state]} {state}" for state in LEGEND)
    if width and max(map(len, grid)) > width:
        grid = _grid(matrix, _BRIEF)
        legend = ", ".join([*(f"{brief} {word}" for word, brief in _BRIEF.items()), legend])
    about = "\n".join(line for column in matrix.columns for line in _about(column))
    said = [_broken(text, width) for text in (legend, "", about, "", "--platform NAME says why")]
    return "\n".join([*grid, "", *said])


_BRIEF: Mapping[Word, str] = {"native": "nat", "emulated": "emu"}


def _grid(matrix: Matrix, brief: Mapping[Word, str] | None = None) -> list[str]:
    head = ["feature", *(c.platform for c in matrix.columns)]
    rows = [[f, *(_short(c, f, brief or {}) for c in matrix.columns)] for f in matrix.features]
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in (head, ["-" * width for width in widths], *rows)
    ]


def _broken(text: str, width: int) -> str:
    """With lines of at most `width` characters, the rest of each set in."""
    if not width:
        return text
    return "\n".join(
        textwrap.fill(
            line,
            width,
            subsequent_indent="      ",
            drop_whitespace=True,
            break_long_words=False,
            break_on_hyphens=False,
        )
        for line in text.split("\n")
    )


def as_json(matrix: Matrix) -> str:
    return json.dumps(to_json(matrix), indent=2, ensure_ascii=False)


def as_markdown(matrix: Matrix) -> str:
    """A table for each group of features, then what each platform says in its own words."""
    lines = [f"- {MARKS[state]} {state}: {doc}" for state, doc in LEGEND.items()]
    for group, names in groupby(matrix.features, key=lambda f: matrix.features[f].group):
        lines += ["", f"## {group.capitalize()}", ""]
        head = ["feature", "what it is", *(c.platform for c in matrix.columns)]
        rows = [
            [f"`{f}`", matrix.features[f].doc, *(_short(c, f) for c in matrix.columns)]
            for f in names
        ]
        lines += [
            "| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |"
            for row in (head, ["---"] * len(head), *rows)
        ]
    return "\n".join([*lines, *(line for c in matrix.columns for line in _section(c))])


def run_line(run: Evidence) -> str:
    """A run of the kit, or of other tests, in a line."""
    total, libraries = run.total, ", ".join(f"{k} {v}" for k, v in run.versions.items())
    counts = f"{total.passed} passed, {total.failed} failed, {total.skipped} skipped"
    levels = f" at levels {', '.join(map(str, run.levels))}" if run.levels else ""
    without = f", without {run.left_out}" if run.left_out else ""
    changed = "+" if run.commit.endswith("+") else ""
    commit = f", commit {run.commit[:12]}{changed}" if run.commit else ""
    where = run.device if run.kind == "run" else f"{run.device}, {run.kind}"
    what = "kit" if run.levels else "tests"
    return f"{what} of {run.day} on {where}: {counts}{levels}{without} ({libraries}{commit})"


def _short(column: Column, feature: str, brief: Mapping[Word, str] | None = None) -> str:
    if feature not in column.cells:
        return "-"
    cell = column.cells[feature]
    return f"{(brief or {}).get(cell.word, cell.word)} {MARKS[cell.evidence]}".strip()


def _about(column: Column) -> list[str]:
    parts = (column.origin, column.device, column.note, column.install)
    lines = [f"{column.platform}: " + "; ".join(part for part in parts if part)]
    return lines + [f"  {run_line(run)}" for run in column.runs]


def _reasons(matrix: Matrix, column: Column) -> str:
    """Each feature of a platform with its reason and evidence, a line each."""
    lines = _about(column)
    width = max((len(f) for f in matrix.features), default=0)
    for feature, cell in column.cells.items():
        evidence = f"{MARKS[cell.evidence]} {cell.evidence}".strip()
        lines.append(f"  {feature:{width}}  {cell.word:8}  {evidence:10}  {cell.why}".rstrip())
        if len(matrix.features) == 1:
            lines += [f"  {'':{width}}  {proof}" for proof in cell.proof]
    return "\n".join(lines)


def _section(column: Column) -> list[str]:
    """A platform's own words, features with the same ones together."""
    lines = ["", f"## {column.platform}", ""]
    if column.note:
        lines += [column.note[0].upper() + column.note[1:] + ".", ""]
    if column.install:
        lines += [f"`{column.install}`", ""]
    for run in column.runs:
        line = run_line(run)
        lines += [f"{line[0].upper()}{line[1:]}.", ""]
        lines += [f"- **failing** `{test}`: {reason}" for test, reason in run.failures]
    said: dict[Cell, list[str]] = {}
    for feature, cell in column.cells.items():
        said.setdefault(Cell(word=cell.word, why=cell.why), []).append(f"`{feature}`")
    for cell, features in said.items():
        these = "every feature" if len(features) == len(column.cells) else ", ".join(features)
        lines.append(f"- **{cell.word}** {these}: {cell.why}")
    return lines
