"""A finished measurement, for programs and for people."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from allmetal.bench.load.drive import Run
from allmetal.bench.load.figures import PERCENTILES, Spread, latencies, rates, timeline, within
from allmetal.bench.load.records import Record
from allmetal.bench.load.settings import LoadSettings

_MOST_LAG_MS = 5.0
_MOST_CPU = 0.8
_TITLES = {
    "ttft": "time to first token",
    "tpot": "time per output token",
    "itl": "between pieces",
    "e2e": "whole request",
    "lateness": "sent too late by",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingResult:
    """`settings` are the workload's; `plan` is None where the server has none to show."""

    model: str
    url: str
    settings: LoadSettings
    run: Run
    environment: Mapping[str, object]
    plan: Mapping[str, Any] | None
    server: Mapping[str, object]
    date: str = field(default_factory=lambda: time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()))

    @property
    def good(self) -> list[Record]:
        return [record for record in self.run.records if record.error is None]

    @property
    def errors(self) -> dict[str, int]:
        """Message -> how many requests failed by it, most first."""
        found = Counter(record.error for record in self.run.records if record.error is not None)
        return dict(found.most_common())

    def to_json(self) -> dict[str, Any]:
        return {
            "benchmark": "serve",
            "date": self.date,
            "model": self.model,
            "settings": self.settings.told(),
            "figures": self._figures(),
            "counts": self._counts(),
            "errors": self.errors,
            "warnings": self.warnings(),
            "timeline": timeline(self.run, self.good) if self.good else None,
            "requests": _columns(self.run),
            "client": self._client(),
            "environment": dict(self.environment),
            "server": {"url": self.url, **self.server},
            "plan": self.plan,
        }

    def to_text(self) -> str:
        counts = self._counts()
        lines = [
            f"{self.model} at {self.url}",
            ", ".join(f"{name} {value}" for name, value in self.settings.told().items()),
            "",
            f"{counts['completed']} requests done, {counts['failed']} failed, "
            f"{counts['input_tokens']} tokens in, {counts['output_tokens']} out",
            *(f"  {count} x {message}" for message, count in self.errors.items()),
        ]
        if self.good:
            lines += ["", *self._rate_lines(), "", *_latency_lines(latencies(self.good))]
        return "\n".join([*lines, *(f"! {warning}" for warning in self.warnings())])

    def warnings(self) -> list[str]:
        """Why the figures may not be what they seem."""
        client, found = self._client(), []
        if client["lag_ms_p99"] > _MOST_LAG_MS or client["cpu"] > _MOST_CPU:
            late = f"{client['lag_ms_p99']:.1f} ms late at p99, {client['cpu']:.0%} of a core"
            found.append(f"the client itself was held up ({late}): latencies may be its own")
        if self.settings.ignore_eos and (short := self._counts()["short"]):
            found.append(f"{short} requests ended before the length that was asked for")
        if any(not record.counted for record in self.good):
            found.append("the server does not count tokens: pieces of the stream were counted")
        return found

    def _figures(self) -> dict[str, Any]:
        if not self.good:
            return {}
        figures: dict[str, Any] = {
            name: {"unit": unit, "median": value, "all": [value]}
            for name, (unit, value) in rates(self.run, self.good).items()
        }
        if self.settings.goodput:
            value = within(self.good, self.settings.goodput) / self.run.seconds
            figures["goodput"] = {"unit": "requests/s", "median": value, "all": [value]}
        return figures | {name: each.to_json() for name, each in latencies(self.good).items()}

    def _counts(self) -> dict[str, int]:
        good = self.good
        counts = {
            "completed": len(good),
            "failed": len(self.run.records) - len(good),
            "input_tokens": sum(r.num_input for r in good),
            "output_tokens": sum(r.num_output for r in good),
            "short": sum(r.num_output < r.num_asked for r in good),
        }
        if self.settings.goodput:
            counts["within_limits"] = within(good, self.settings.goodput)
        return counts

    def _client(self) -> dict[str, float]:
        lag = sorted(self.run.lag) or [0.0]
        pieces = sum(len(record.pieces) for record in self.run.records)
        return {
            "cpu": self.run.cpu_s / self.run.seconds,
            "cpu_us_per_piece": self.run.cpu_s / max(1, pieces) * 1e6,
            "lag_ms_p99": lag[int(0.99 * (len(lag) - 1))] * 1e3,
            "lag_ms_max": lag[-1] * 1e3,
        }

    def _rate_lines(self) -> list[str]:
        shown = {name: f"{value:,.2f} {unit}" for name, (unit, value) in
                 rates(self.run, self.good).items()}  # fmt: skip
        if limits := self.settings.goodput:
            kept = within(self.good, limits)
            said = ", ".join(f"{name} {most:g} ms" for name, most in limits.items())
            share = kept / len(self.run.records)
            shown["goodput"] = (
                f"{kept / self.run.seconds:,.2f} requests/s within {said} ({share:.1%} of requests)"
            )
        return [f"{name:<10}{value:>12}" for name, value in shown.items()]


def _latency_lines(spreads: Mapping[str, Spread]) -> list[str]:
    heads = ["mean", *(f"p{p}" for p in PERCENTILES), "max"]
    lines = [f"{'ms':<22}" + "".join(f"{head:>11}" for head in heads)]
    for name, each in spreads.items():
        cells = [each.mean, *(each.percentile(p) for p in PERCENTILES), each.quantiles[-1]]
        lines.append(f"{_TITLES[name]:<22}" + "".join(f"{cell:>11,.2f}" for cell in cells))
    return lines


def _columns(run: Run) -> dict[str, Sequence[object]]:
    """Each request, in the order they came; times in ms after the beginning."""
    records = run.records

    def ms(value: float) -> float:
        return round((value - run.begin) * 1e3, 3)

    return {
        "scheduled": [ms(r.scheduled) for r in records],
        "sent": [ms(r.sent) for r in records],
        "first": [ms(r.pieces[0]) if r.pieces else None for r in records],
        "last": [ms(r.pieces[-1]) if r.pieces else None for r in records],
        "input_tokens": [r.num_input for r in records],
        "output_tokens": [r.num_output for r in records],
        "failed": [r.error is not None for r in records],
    }
