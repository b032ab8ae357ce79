"""One request at a time: how soon the first token comes, and how long each one after it takes."""

from __future__ import annotations

from allmetal.bench.drive import Workload, check_lengths, drive
from allmetal.bench.report import Figure
from allmetal.bench.settings import LatencySettings
from allmetal.engine.engine import Engine


def measure_latency(engine: Engine, settings: LatencySettings) -> list[Figure]:
    """Raises ConfigError if a request does not fit, BenchmarkError if work was skipped."""
    check_lengths(engine, settings.input_len, settings.output_len)
    workload = Workload(
        engine.loaded.vocab_size,
        input_len=settings.input_len,
        output_len=settings.output_len,
        seed=settings.workload_seed,
    )
    drive(engine, workload.take(settings.warmup), concurrency=1)
    runs = drive(engine, workload.take(settings.repetitions), concurrency=1)
    ttft = [run.ttft for run in runs]
    decode = [sum(run.gaps) / len(run.gaps) for run in runs]
    return [
        Figure(name="ttft", unit="ms", values=tuple(s * 1e3 for s in ttft)),
        Figure(name="prefill", unit="tokens/s", values=tuple(settings.input_len / s for s in ttft)),
        Figure(name="decode", unit="ms/token", values=tuple(s * 1e3 for s in decode)),
        Figure(name="decode_speed", unit="tokens/s", values=tuple(1 / s for s in decode)),
        Figure(name="slowest_token", unit="ms", values=tuple(max(run.gaps) * 1e3 for run in runs)),
    ]
