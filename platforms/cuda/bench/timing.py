"""Time launches, and what the card could do at best.

A measurement records at least ten calls over different inputs as one CUDA graph, so that neither
launches from the host nor data left in the cache are measured, and takes the median of replays.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

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
    """A copy of 1 GiB, its bytes counted in and out, and a product of 8192 cubed in bfloat16."""
    x = torch.randn(1 << 28, device="cuda")
    y = torch.empty_like(x)
    copy = seconds([lambda: y.copy_(x)])
    a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    product = seconds([lambda: a @ b])
    return Ceilings(bandwidth=2 * x.nbytes / copy, matmul=2 * 8192**3 / product)


def num_sets(num_bytes: int, most: int = 8) -> int:
    """Different inputs to take turns, so that together they exceed the cache several times."""
    return max(1, min(most, int(4e8 // max(num_bytes, 1)) + 1))
