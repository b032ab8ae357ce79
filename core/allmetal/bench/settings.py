"""The workloads of the benchmarks.  Apart from what measures, so that help needs no engine."""

from __future__ import annotations

from dataclasses import dataclass

from allmetal.config import option
from allmetal.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencySettings:
    """The workload of `bench latency`."""

    input_len: int = option(128, "tokens of each prompt")
    output_len: int = option(128, "tokens generated for each prompt")
    repetitions: int = option(5, "requests that are timed, one after the other")
    warmup: int = option(1, "requests before them that are not")
    workload_seed: int = option(0, "seed of the random prompts")

    def __post_init__(self) -> None:
        if min(self.input_len, self.repetitions) < 1 or self.output_len < 2 or self.warmup < 0:
            raise ConfigError("lengths and repetitions must be positive, output_len at least 2")


@dataclass(frozen=True, slots=True, kw_only=True)
class ThroughputSettings:
    """The workload of `bench throughput`."""

    requests: int = option(64, "requests in each repetition")
    concurrency: int | None = option(None, "requests open at once; default: all of them")
    input_len: int = option(256, "tokens of each prompt")
    output_len: int = option(64, "tokens generated for each prompt")
    repetitions: int = option(3, "times that the whole is done")
    warmup: int = option(4, "requests before them that are not timed")
    workload_seed: int = option(0, "seed of the random prompts")

    def __post_init__(self) -> None:
        least = min(self.requests, self.input_len, self.repetitions, self.concurrency or 1)
        if least < 1 or self.output_len < 2 or self.warmup < 0:
            raise ConfigError("counts and lengths must be positive, output_len at least 2")
