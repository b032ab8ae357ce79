"""Plots as SVG that stands alone: lines and steps over linear or logarithmic axes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 480, 250
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 14, 12, 40
NUM_HUES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """`hue`: which of the page's colours."""

    name: str
    points: Sequence[tuple[float, float]]
    hue: int
    dots: bool = False
    dashed: bool = False


@dataclass(frozen=True, slots=True)
class _Axis:
    low: float
    high: float
    log: bool
    begin: float
    end: float

    def place(self, value: float) -> float:
        """Pixels."""
        low, high, value = (
            (math.log10(v) for v in (self.low, self.high, max(value, self.low)))
            if self.log
            else (self.low, self.high, value)
        )
        share = (value - low) / (high - low) if high > low else 0.5
        return self.begin + share * (self.end - self.begin)

    def ticks(self) -> list[float]:
        if self.log:
            return _log_ticks(self.low, self.high)
        step = _nice((self.high - self.low) / 5 or 1.0)
        first = math.ceil(self.low / step - 1e-9)
        count = int((self.high - first * step) / step + 1e-9) + 1
        return [(first + i) * step for i in range(max(1, count))]


def line_plot(
    series: Sequence[Series], *, x: str, y: str, log_x: bool = False, zero_y: bool = True
) -> str:
    """Axes with their names, and a line a series; a point has its values as a tooltip."""
    xs = [p[0] for one in series for p in one.points]
    ys = [p[1] for one in series for p in one.points]
    if log_x:
        xs = [value for value in xs if value > 0]
    if not xs or not ys:
        return ""
    across = _axis(xs, log=log_x, begin=_LEFT, end=WIDTH - _RIGHT, zero=False)
    up = _axis(ys, log=False, begin=HEIGHT - _BOTTOM, end=_TOP, zero=zero_y)
    parts = [_grid(across, up), *(_line(one, across, up) for one in series), _names(x, y)]
    label = escape(f"{y} over {x}: {', '.join(one.name for one in series)}")
    head = f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{label}">'
    return "".join([head, *parts, "</svg>"])


def _axis(values: Sequence[float], *, log: bool, begin: float, end: float, zero: bool) -> _Axis:
    low, high = min(values), max(values)
    if log:
        return _Axis(low * 0.95, max(high, low * 1.01) * 1.05, True, begin, end)
    low = min(0.0, low) if zero else low
    margin = 0.04 * (high - low or abs(high) or 1.0)
    return _Axis(low, high + margin, False, begin, end)


def _line(one: Series, across: _Axis, up: _Axis) -> str:
    places = [(across.place(x), up.place(y)) for x, y in one.points]
    path = "M" + "L".join(f"{a:.1f} {b:.1f}" for a, b in places)
    hue = f"h{one.hue % NUM_HUES}" + (" dashed" if one.dashed else "")
    title = f"<title>{escape(one.name)}</title>"
    drawn = f'<path class="line {hue}" d="{path}">{title}</path>'
    if one.dots:
        drawn += "".join(
            f'<circle class="dot {hue}" cx="{a:.1f}" cy="{b:.1f}" r="3.5">'
            f"<title>{escape(one.name)}: {short(x)}, {short(y)}</title></circle>"
            for (a, b), (x, y) in zip(places, one.points, strict=True)
        )
    return drawn


def _grid(across: _Axis, up: _Axis) -> str:
    parts = []
    for value in up.ticks():
        at = up.place(value)
        parts.append(f'<path class="grid" d="M{_LEFT} {at:.1f}H{WIDTH - _RIGHT}"/>')
        parts.append(f'<text x="{_LEFT - 7}" y="{at + 4:.1f}" class="end">{short(value)}</text>')
    for value in across.ticks():
        at, low = across.place(value), HEIGHT - _BOTTOM
        parts.append(f'<path class="grid" d="M{at:.1f} {_TOP}V{low}"/>')
        parts.append(f'<text x="{at:.1f}" y="{low + 16}" class="mid">{short(value)}</text>')
    return "".join(parts)


def _names(x: str, y: str) -> str:
    middle = (_LEFT + WIDTH - _RIGHT) / 2
    return (
        f'<text x="{middle}" y="{HEIGHT - 6}" class="mid name">{escape(x)}</text>'
        f'<text transform="translate(12 {(HEIGHT - _BOTTOM) / 2}) rotate(-90)" class="mid name">'
        f"{escape(y)}</text>"
    )


def _nice(step: float) -> float:
    """The next of 1, 2, 5, 10 .. of its power of ten."""
    ten = 10.0 ** math.floor(math.log10(step))
    return next(n * ten for n in (1, 2, 5, 10) if n * ten >= step * (1 - 1e-9))


def _log_ticks(low: float, high: float) -> list[float]:
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    steps = (1, 2, 5) if len(powers) <= 4 else (1,)
    return [v for p in powers for s in steps if low <= (v := s * 10.0**p) <= high]


def short(value: float) -> str:
    """1234567 as 1.23M."""
    for least, size, unit in ((1e9, 1e9, "G"), (1e6, 1e6, "M"), (1e4, 1e3, "k")):
        if abs(value) >= least:
            return f"{value / size:.3g}{unit}"
    return f"{value:.4g}"
