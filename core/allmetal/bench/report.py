"""Figures with all that is needed to make them again."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from allmetal.bench.machine import machine
from allmetal.engine.engine import Engine
from allmetal.platform.render import title, to_json


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One quantity: every repetition, none left out."""

    name: str
    unit: str
    values: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    def to_json(self) -> dict[str, Any]:
        return {"unit": self.unit, "median": self.median, "all": list(self.values)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """A benchmark's outcome.  `settings` are the workload's."""

    benchmark: str
    model: str
    settings: Mapping[str, object]
    figures: Sequence[Figure]
    environment: Mapping[str, object]
    plan: Mapping[str, object]
    title: str
    date: str = field(default_factory=lambda: time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()))

    def to_json(self) -> dict[str, Any]:
        return {
            "benchmark": self.benchmark,
            "date": self.date,
            "model": self.model,
            "settings": dict(self.settings),
            "figures": {figure.name: figure.to_json() for figure in self.figures},
            "environment": dict(self.environment),
            "plan": dict(self.plan),
        }

    def to_text(self) -> str:
        settings = ", ".join(f"{name} {value}" for name, value in self.settings.items())
        width = max(len(figure.name) for figure in self.figures)
        lines = [self.title, f"{self.benchmark}: {settings}", ""]
        lines.append(f"{'':{width}}  {'median':>10}  {'least':>10}  {'most':>10}  unit")
        for figure in self.figures:
            cells = (figure.median, min(figure.values), max(figure.values))
            shown = "  ".join(f"{value:>10.3f}" for value in cells)
            lines.append(f"{figure.name:{width}}  {shown}  {figure.unit}")
        return "\n".join(lines)


def report(
    benchmark: str,
    engine: Engine,
    *,
    model: str,
    settings: Mapping[str, object],
    figures: Sequence[Figure],
    environment: Mapping[str, object],
) -> Report:
    assert engine.plan is not None
    return Report(
        benchmark=benchmark,
        model=model,
        settings=settings,
        figures=figures,
        environment=environment,
        plan=to_json(engine.plan),
        title=title(engine.plan),
    )


def environment(engine: Engine, command: Sequence[str]) -> dict[str, object]:
    """Taken before measuring: the machine's load is part of it."""
    assert engine.plan is not None
    device = engine.plan.device
    return {
        **machine(command),
        "device": device.name,
        "driver": device.driver,
        "arch": device.arch,
        "traits": dict(device.traits),
        "weight_bytes": engine.loaded.weight_bytes,
        "cache_blocks": engine.layout.num_blocks,
    }
