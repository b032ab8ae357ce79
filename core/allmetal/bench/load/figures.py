"""From what was seen of each request to what is told of all."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from allmetal.bench.load.drive import Run
from allmetal.bench.load.records import Record

PERCENTILES = (50, 90, 95, 99)
_BINS = 120
"""At most so many points of a timeline."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """How one quantity is spread over requests, tokens or ticks.  `quantiles`: 0 to 100 %."""

    unit: str
    count: int
    mean: float
    std: float
    quantiles: tuple[float, ...]

    def percentile(self, percent: int) -> float:
        return self.quantiles[percent]

    def to_json(self) -> dict[str, Any]:
        named = {f"p{p}": self.percentile(p) for p in PERCENTILES if p != 50}
        return {
            "unit": self.unit,
            "median": self.percentile(50),
            "mean": self.mean,
            "std": self.std,
            **named,
            "max": self.quantiles[-1],
            "count": self.count,
            "quantiles": [round(value, 4) for value in self.quantiles],
        }


def spread(values: Iterable[float], unit: str) -> Spread | None:
    """Percentiles are linear between the values next to them; None where there is no value."""
    found = np.fromiter(values, dtype=np.float64)
    if not found.size:
        return None
    return Spread(
        unit=unit,
        count=int(found.size),
        mean=float(found.mean()),
        std=float(found.std()),
        quantiles=tuple(np.percentile(found, range(101)).tolist()),
    )


def latencies(records: Sequence[Record]) -> dict[str, Spread]:
    """ttft, tpot, itl, e2e and lateness in milliseconds, of requests that succeeded."""
    values: dict[str, Iterable[float]] = {
        "ttft": (r.ttft for r in records),
        "tpot": (t for r in records if (t := r.tpot) is not None),
        "itl": (gap for r in records for gap in r.gaps),
        "e2e": (r.e2e for r in records),
        "lateness": (r.sent - r.scheduled for r in records),
    }
    made = {name: spread((v * 1e3 for v in each), "ms") for name, each in values.items()}
    return {name: each for name, each in made.items() if each is not None}


def rates(run: Run, good: Sequence[Record]) -> dict[str, tuple[str, float]]:
    """Name -> (unit, value), over the whole run."""
    num_output = sum(r.num_output for r in good)
    num_input = sum(r.num_input for r in good)
    return {
        "requests": ("requests/s", len(good) / run.seconds),
        "output": ("tokens/s", num_output / run.seconds),
        "total": ("tokens/s", (num_input + num_output) / run.seconds),
        "duration": ("s", run.seconds),
    }


def within(records: Sequence[Record], limits_ms: Mapping[str, float]) -> int:
    """How many kept within every limit; itl is each request's mean."""
    return sum(all(_measured(r, n) * 1e3 <= most for n, most in limits_ms.items()) for r in records)


def _measured(record: Record, name: str) -> float:
    match name:
        case "ttft":
            return record.ttft
        case "e2e":
            return record.e2e
        case "itl":
            return sum(record.gaps) / len(record.gaps) if record.gaps else 0.0
    return record.tpot or 0.0


def timeline(run: Run, good: Sequence[Record]) -> dict[str, Any]:
    """Output tokens a second and open requests, in equal bins from beginning to end."""
    num_bins = min(_BINS, max(1, math.ceil(run.seconds)))
    edges = np.linspace(0.0, run.seconds, num_bins + 1)
    width = run.seconds / num_bins
    tokens = np.zeros(num_bins)
    for record in good:
        each = record.num_output / len(record.pieces)
        tokens += np.histogram(np.array(record.pieces) - run.begin, edges)[0] * each
    middles = (edges[:-1] + edges[1:]) / 2
    begun = np.sort([r.sent - run.begin for r in good])
    ended = np.sort([r.pieces[-1] - run.begin for r in good])
    open_now = np.searchsorted(begun, middles) - np.searchsorted(ended, middles)
    return {
        "seconds": width,
        "output_tokens_per_s": (tokens / width).round(2).tolist(),
        "open_requests": open_now.tolist(),
    }
