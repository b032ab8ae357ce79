"""What an engine is asked to do, and the figures that come of it, all in tokens per second.

decode   127 / (time of 128 in, 128 out - time of 128 in, 1 out), one request
prefill  1024 / time of 1024 in, 1 out
serve16  32 requests of 128 in, 128 out, at most 16 at once
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Protocol

METRICS = ("decode", "prefill", "serve16")
NUM_REQUESTS, AT_ONCE, LENGTH, LONG = 32, 16, 128, 1024
TEXT = "the return value of this function is a list of all"
"""The prompt of which the first token is waited for."""


class Engine(Protocol):
    def generate(self, prompts: list[list[int]], count: int) -> None:
        """Complete each prompt by exactly `count` tokens, greedily, at most AT_ONCE at a time."""
        ...


def prompt(length: int, seed: int) -> list[int]:
    draw = random.Random(seed)
    return [draw.randrange(300, 31_000) for _ in range(length)]


def seconds(work: Callable[[], object]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def figure(engine: Engine, metric: str) -> float:
    if metric == "decode":
        first = seconds(lambda: engine.generate([prompt(LENGTH, 1)], 1))
        whole = seconds(lambda: engine.generate([prompt(LENGTH, 2)], LENGTH))
        return (LENGTH - 1) / (whole - first)
    if metric == "prefill":
        return LONG / seconds(lambda: engine.generate([prompt(LONG, 3)], 1))
    prompts = [prompt(LENGTH, 100 + i) for i in range(NUM_REQUESTS)]
    return NUM_REQUESTS * LENGTH / seconds(lambda: engine.generate(prompts, LENGTH))
