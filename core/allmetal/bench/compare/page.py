"""Results as a page that stands alone: no script, style or font from elsewhere."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib.resources import files
from typing import Any

from jinja2 import Environment, StrictUndefined

from allmetal.bench.compare.differences import Difference
from allmetal.bench.compare.plots import NUM_HUES, Series, line_plot, short
from allmetal.bench.compare.ratios import Row, rows
from allmetal.bench.compare.runs import Measured, Result

_SPREADS = {
    "ttft": "Time to first token",
    "tpot": "Time per output token",
    "itl": "Between pieces of a stream",
    "e2e": "Whole request",
}
_CURVES = {
    ("output", "ttft"): ("Output, tokens/s", "time to first token, ms"),
    ("output", "tpot"): ("Output, tokens/s", "time per output token, ms"),
    ("requests", "e2e"): ("Requests/s", "whole request, ms"),
}
_LOAD = ("rate", "concurrency", "speedup")


def as_page(
    results: Sequence[Result], found: Sequence[Difference], *, varied: Sequence[str] = ()
) -> str:
    """HTML.  `varied`: the settings along which a sweep's results lie."""
    source = files("allmetal.bench.compare").joinpath("page.html").read_text(encoding="utf-8")
    template = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    ).from_string(source)
    made = rows(results)
    return template.render(
        benchmark=results[0].benchmark,
        model=results[0].model,
        runs=[_card(result, i) for i, result in enumerate(results)],
        forbidding=[d for d in found if d.forbids],
        explaining=[d for d in found if not d.forbids],
        rows=[_cells(row) for row in made],
        plots=_plots(results, varied),
        groups=_groups(results, varied),
        settings=_settings(results),
    )


def _card(result: Result, index: int) -> dict[str, Any]:
    plan = result.plan or {}
    device = plan.get("device", {}).get("name") or result.environment.get("processor", "")
    output = result.figures.get("output")
    return {
        "name": result.name,
        "hue": index % NUM_HUES,
        "date": result.date,
        "commit": str(result.environment.get("commit") or "")[:12],
        "where": f"{plan.get('platform', 'unknown platform')}: {device}",
        "headline": output and f"{output.median:,.1f}",
        "unit": output and output.unit,
        "warnings": result.warnings,
    }


def _cells(row: Row) -> dict[str, Any]:
    cells = []
    for i, value in enumerate(row.values):
        ratio = row.ratios[i] if i else None
        cells.append(
            {
                "value": "–" if value is None else f"{value:,.2f}",
                "ratio": "" if ratio is None else f"×{ratio:.3f}",
                "verdict": row.verdicts[i],
            }
        )
    return {"figure": row.figure, "unit": row.unit, "cells": cells}


def _plots(results: Sequence[Result], varied: Sequence[str]) -> list[dict[str, Any]]:
    made = [*_curves(results, varied), *_cumulative(results), *_over_time(results)]
    return [{"title": title, "svg": svg} for title, svg in made if svg]


def _groups(results: Sequence[Result], varied: Sequence[str]) -> list[str]:
    """What the colours along a sweep mean, where there are several."""
    groups = list(_by_load(results)) if varied else []
    return groups if len(groups) > 1 else []


def _curves(results: Sequence[Result], varied: Sequence[str]) -> list[tuple[str, str]]:
    """What latency a throughput costs: a line for whatever but the load was varied."""
    if not varied or len(results) < 2:
        return []
    made = []
    for (across, up), (x, y) in _CURVES.items():
        series = []
        for hue, (group, those) in enumerate(_by_load(results).items()):
            both = [(a.median, b.median, b.p99 or b.median) for a, b in _pairs(those, across, up)]
            both.sort()
            name = f"{group} " if group else ""
            middle, worst = [(a, b) for a, b, _ in both], [(a, c) for a, _, c in both]
            series.append(Series(name=f"{name}median", points=middle, hue=hue, dots=True))
            series.append(Series(name=f"{name}p99", points=worst, hue=hue, dots=True, dashed=True))
        title = f"{y.split(',')[0].capitalize()} along the sweep: median, and dashed p99"
        made.append((title, line_plot(series, x=x, y=y)))
    return made


def _by_load(results: Sequence[Result]) -> dict[str, list[Result]]:
    """The varied settings but the load, as a sweep names its files -> results."""
    groups: dict[str, list[Result]] = {}
    for result in results:
        pairs = [p for p in result.name.split(",") if p.partition("=")[0] not in _LOAD]
        groups.setdefault(" ".join(pairs), []).append(result)
    return groups


def _pairs(results: Sequence[Result], across: str, up: str) -> Iterator[tuple[Measured, Measured]]:
    for result in results:
        if across in result.figures and up in result.figures:
            yield result.figures[across], result.figures[up]


def _cumulative(results: Sequence[Result]) -> list[tuple[str, str]]:
    """The share of requests, or of pieces, that were at least so quick."""
    made = []
    for name, title in _SPREADS.items():
        series = [
            Series(name=r.name, points=[(v, i) for i, v in enumerate(f.quantiles)], hue=n)
            for n, r in enumerate(results)
            if (f := r.figures.get(name)) is not None and f.quantiles
        ]
        ends = [value for one in series for value, _ in one.points if value > 0]
        log = bool(ends) and max(ends) > 20 * sorted(ends)[len(ends) // 20]
        made.append((title, line_plot(series, x="ms", y="% at most", log_x=log)))
    return made


def _over_time(results: Sequence[Result]) -> list[tuple[str, str]]:
    made = []
    for key, title in (
        ("output_tokens_per_s", "Output tokens/s over time"),
        ("open_requests", "Open requests over time"),
    ):
        series = [
            Series(
                name=r.name,
                points=[((i + 0.5) * line["seconds"], v) for i, v in enumerate(line[key])],
                hue=n,
            )
            for n, r in enumerate(results)
            if (line := r.timeline) is not None and len(line[key]) > 1
        ]
        made.append((title, line_plot(series, x="seconds", y=title.split(" over")[0])))
    return made


def _settings(results: Sequence[Result]) -> list[tuple[str, list[str]]]:
    names = dict.fromkeys(name for result in results for name in result.settings)
    return [(n, [_shown(result.settings.get(n, "–")) for result in results]) for n in names]


def _shown(value: object) -> str:
    return short(value) if isinstance(value, float) else str(value)
