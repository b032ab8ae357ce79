"""Many requests at once: how much is done in a second, and what one request feels of it."""

from __future__ import annotations

import statistics
import time

from allmetal.bench.drive import Timeline, Workload, check_lengths, drive
from allmetal.bench.report import Figure
from allmetal.bench.settings import ThroughputSettings
from allmetal.engine.engine import Engine


def measure_throughput(engine: Engine, settings: ThroughputSettings) -> list[Figure]:
    """Raises ConfigError if a request does not fit, BenchmarkError if work was skipped."""
    check_lengths(engine, settings.input_len, settings.output_len)
    concurrency = settings.concurrency or settings.requests
    workload = Workload(
        engine.loaded.vocab_size,
        input_len=settings.input_len,
        output_len=settings.output_len,
        seed=settings.workload_seed,
    )
    drive(engine, workload.take(settings.warmup), concurrency=concurrency)
    seconds: list[float] = []
    runs: list[list[Timeline]] = []
    for _ in range(settings.repetitions):
        requests = workload.take(settings.requests)
        begin = time.perf_counter()
        runs.append(drive(engine, requests, concurrency=concurrency))
        seconds.append(time.perf_counter() - begin)
    return _figures(settings, seconds, runs)


def _figures(
    settings: ThroughputSettings, seconds: list[float], runs: list[list[Timeline]]
) -> list[Figure]:
    num_output = settings.requests * settings.output_len
    num_total = num_output + settings.requests * settings.input_len
    ttft = [statistics.median(one.ttft for one in run) for run in runs]
    gaps = [statistics.median(gap for one in run for gap in one.gaps) for run in runs]

    def rate(name: str, unit: str, amount: int) -> Figure:
        return Figure(name=name, unit=unit, values=tuple(amount / s for s in seconds))

    return [
        rate("requests", "requests/s", settings.requests),
        rate("output", "tokens/s", num_output),
        rate("total", "tokens/s", num_total),
        Figure(name="median_ttft", unit="ms", values=tuple(s * 1e3 for s in ttft)),
        Figure(name="median_gap", unit="ms/token", values=tuple(s * 1e3 for s in gaps)),
        Figure(name="duration", unit="s", values=tuple(seconds)),
    ]
