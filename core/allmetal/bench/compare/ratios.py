"""Each figure of all results, against the first."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from allmetal.bench.compare.runs import Measured, Result

Verdict: TypeAlias = Literal["better", "worse", "same", ""]
_NO_VERDICT = ("lateness", "p99")
"""What is the client's own, and what no error is known of."""
_SURE = 2.0
"""Standard errors that a difference must have."""
_SINGLE = 0.03
"""What a figure that was taken once must differ by."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """`values`: one a result, None where it has no such figure; `ratios` to the first, likewise."""

    figure: str
    unit: str
    values: tuple[float | None, ...]
    ratios: tuple[float | None, ...]
    verdicts: tuple[Verdict, ...]


def rows(results: Sequence[Result]) -> list[Row]:
    """The median of each figure, and the 99th percentile where it is spread over requests."""
    names = dict.fromkeys(name for result in results for name in result.figures)
    made: list[Row] = []
    for name in names:
        figures = [result.figures.get(name) for result in results]
        made.append(_row(name, figures, [None if f is None else f.median for f in figures]))
        if any(f is not None and f.p99 is not None for f in figures):
            made.append(
                _row(f"{name} p99", figures, [None if f is None else f.p99 for f in figures])
            )
    return made


def as_table(results: Sequence[Result], made: Sequence[Row]) -> str:
    """For a terminal: + is better than the first result, - worse, ~ within what chance does."""
    marks: Mapping[Verdict, str] = {"better": "+", "worse": "-", "same": "~", "": " "}
    head = ["figure", "unit", *(r.name for r in results)]
    lines = [head]
    for row in made:
        cells = []
        for i, (value, ratio) in enumerate(zip(row.values, row.ratios, strict=True)):
            shown = "–" if value is None else f"{value:,.2f}"
            if i and ratio is not None:
                shown += f"  ×{ratio:.3f} {marks[row.verdicts[i]]}"
            cells.append(shown)
        lines.append([row.figure, row.unit, *cells])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(_aligned(line, widths) for line in lines)


def _aligned(cells: Sequence[str], widths: Sequence[int]) -> str:
    """Names to the left, numbers to the right."""
    names = [cell.ljust(width) for cell, width in zip(cells[:2], widths[:2], strict=True)]
    numbers = [cell.rjust(width) for cell, width in zip(cells[2:], widths[2:], strict=True)]
    return "  ".join([*names, *numbers]).rstrip()


def _row(name: str, figures: Sequence[Measured | None], values: Sequence[float | None]) -> Row:
    first, base = figures[0], values[0]
    ratios = tuple(v / base if v is not None and base else None for v in values)
    verdicts: tuple[Verdict, ...] = tuple(
        "" if i == 0 else _verdict(name, first, figure, ratio)
        for i, (figure, ratio) in enumerate(zip(figures, ratios, strict=True))
    )
    unit = next(f.unit for f in figures if f is not None)
    return Row(figure=name, unit=unit, values=tuple(values), ratios=ratios, verdicts=verdicts)


def _verdict(
    name: str, first: Measured | None, other: Measured | None, ratio: float | None
) -> Verdict:
    if first is None or other is None or ratio is None or _is_open(name):
        return ""
    if _by_chance(first, other):
        return "same"
    return "better" if (ratio < 1) == first.lower_is_better else "worse"


def _is_open(name: str) -> bool:
    return any(word in _NO_VERDICT for word in name.split())


def _by_chance(first: Measured, other: Measured) -> bool:
    """Whether repetitions overlap, or means differ by less than their errors.

    Requests of one run are not independent, so errors are rather larger than this thinks.
    """
    if first.mean is not None and other.mean is not None:
        error = math.hypot(_error(first), _error(other))
        return abs(first.mean - other.mean) < _SURE * error
    if min(len(first.values), len(other.values)) < 2:
        return abs(other.median - first.median) <= _SINGLE * abs(first.median)
    return min(first.values) <= max(other.values) and min(other.values) <= max(first.values)


def _error(figure: Measured) -> float:
    return figure.std / math.sqrt(max(1, figure.count))
