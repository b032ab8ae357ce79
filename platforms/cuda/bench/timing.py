"""Time launches, and what the card could do at best.

A measurement records at least ten calls over different inputs as one CUDA graph, so that neither
launches from the host nor data left in the cache are measured, and takes the median of replays.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch.nn import functional

Call = Callable[[], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ceilings:
    """Bytes and operations a second that the card was seen to reach."""

    bandwidth: float
    matmul: float

    def least(self, num_bytes: float, operations: float = 0.0) -> float:
        """Seconds below which no kernel can do it."""
        return max(num_bytes / self.bandwidth, operations / self.matmul)


def seconds(calls: Sequence[Call], *, least_calls: int = 10, replays: int = 7) -> float:
    """Median time of one call."""
    for call in calls:
        call()
    torch.cuda.synchronize()
    repeated = [calls[i % len(calls)] for i in range(max(least_calls, len(calls)))]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in repeated:
            call()
    graph.replay()
    torch.cuda.synchronize()
    times = []
    for _ in range(replays):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) / 1e3 / len(repeated))
    return statistics.median(times)


def measure_ceilings() -> Ceilings:
    """The better of copying 4 GiB, bytes counted in and out, and of multiplying a vector by a
    matrix of 2 GiB; and a product of 8192 cubed in bfloat16."""
    return Ceilings(bandwidth=max(_copied(), _read()), matmul=_multiplied())


def _copied() -> float:
    x = torch.randn(1 << 30, device="cuda")
    y = torch.empty_like(x)
    return 2 * x.nbytes / seconds([partial(y.copy_, x)])


def _read() -> float:
    wide = torch.randn(1 << 18, 4096, device="cuda", dtype=torch.bfloat16)
    one = torch.randn(1, 4096, device="cuda", dtype=torch.bfloat16)
    return wide.nbytes / seconds([partial(functional.linear, one, wide)])


def _multiplied() -> float:
    a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    return 2 * 8192**3 / seconds([partial(torch.matmul, a, b)])


def num_sets(num_bytes: int, most: int = 8) -> int:
    """Different inputs to take turns, so that together they exceed the cache several times."""
    return max(1, min(most, int(4e8 // max(num_bytes, 1)) + 1))
