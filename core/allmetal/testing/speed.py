"""How long each of a platform's kernels takes on problems of real sizes.  Says nothing of whether
its answers are right: that is the rest of the kit.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from allmetal.platform.contract import AnyKernel, DeviceInfo, Platform, Supported
from allmetal.platform.specs import (
    AttentionSpec,
    DenseWeight,
    GatedActivationSpec,
    LinearSpec,
    RMSNormSpec,
)
from allmetal.platform.words import problem
from allmetal.testing.batches import paged_batch
from allmetal.testing.conformance.base import Bench

_SECONDS = 0.3
"""Spent on each, after one call that may compile."""
_LEAST = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """`microseconds`: median of `repetitions` calls, each waited for."""

    family: str
    kernel: str
    problem: str
    size: str
    microseconds: float
    least: float
    repetitions: int


def measure(platform: Platform, info: DeviceInfo, dtype: str) -> list[Speed]:
    """Every kernel of its own that takes a problem, on decoding and on a prompt."""
    device = platform.open(info)
    generator = torch.Generator().manual_seed(0)
    bench = Bench(platform=platform, info=info, device=device, generator=generator)
    try:
        return [
            _time(bench, kernel, spec, size, call)
            for spec, size, make in _problems(bench, dtype)
            for kernel in platform.kernels(info).get(spec.family, ())
            if isinstance(kernel.supports(spec), Supported)
            for call in [make(kernel)]
        ]
    finally:
        device.close()


def _time(
    bench: Bench, kernel: AnyKernel, spec: Any, size: str, call: Callable[[], object]
) -> Speed:
    def once() -> float:
        began = time.perf_counter()
        call()
        bench.device.synchronize()
        return time.perf_counter() - began

    once()
    spent: list[float] = []
    while len(spent) < _LEAST or (sum(spent) < _SECONDS and len(spent) < 1000):
        spent.append(once())
    return Speed(
        family=spec.family,
        kernel=kernel.name,
        problem=problem(spec),
        size=size,
        microseconds=round(statistics.median(spent) * 1e6, 1),
        least=round(min(spent) * 1e6, 1),
        repetitions=len(spent),
    )


Problem = tuple[Any, str, Callable[[AnyKernel], Callable[[], object]]]


def _problems(bench: Bench, dtype: str) -> Iterator[Problem]:
    for rows in (1, 16, 256):
        size = f"{rows} tokens"
        yield _linear(bench, dtype, rows, size)
        yield _norm(bench, dtype, rows, size)
        yield _activation(bench, dtype, rows, size)
    yield _attention(bench, dtype, [1] * 8, [512] * 8, "8 sequences decode at 512 tokens")
    yield _attention(bench, dtype, [256], [256], "a prompt of 256 tokens")


def _linear(bench: Bench, dtype: str, rows: int, size: str) -> Problem:
    spec = LinearSpec(
        dtype=dtype,
        in_features=1024,
        out_features=2048,
        bias=False,
        weight=DenseWeight(dtype=dtype),
    )

    def make(kernel: AnyKernel) -> Callable[[], object]:
        op = kernel.build(spec)
        weight = op.pack({"weight": bench.put(bench.normal(2048, 1024, dtype=dtype))})
        x = bench.put(bench.normal(rows, 1024, dtype=dtype))
        return lambda: op(x, weight, None)

    return spec, size, make


def _norm(bench: Bench, dtype: str, rows: int, size: str) -> Problem:
    spec = RMSNormSpec(dtype=dtype, dim=2048, eps=1e-6, residual=True)

    def make(kernel: AnyKernel) -> Callable[[], object]:
        op = kernel.build(spec)
        x, r = (bench.put(bench.normal(rows, 2048, dtype=dtype)) for _ in range(2))
        weight = bench.put(bench.normal(2048, dtype=dtype))
        return lambda: op(x, weight, r)

    return spec, size, make


def _activation(bench: Bench, dtype: str, rows: int, size: str) -> Problem:
    spec = GatedActivationSpec(dtype=dtype, dim=4096, activation="silu")

    def make(kernel: AnyKernel) -> Callable[[], object]:
        op = kernel.build(spec)
        x = bench.put(bench.normal(rows, 8192, dtype=dtype))
        return lambda: op(x)

    return spec, size, make


def _attention(
    bench: Bench, dtype: str, queries: Sequence[int], lengths: Sequence[int], size: str
) -> Problem:
    spec = AttentionSpec(
        dtype=dtype,
        kv_dtype=dtype,
        num_heads=16,
        num_kv_heads=4,
        head_dim=128,
        block_size=16,
        scale=128**-0.5,
    )

    def make(kernel: AnyKernel) -> Callable[[], object]:
        op = kernel.build(spec)
        paged = paged_batch(queries, lengths, spec.block_size, generator=bench.generator)
        shape = op.cache_shape(paged.num_blocks)
        cache = bench.put(bench.normal(*shape, dtype=dtype))
        q = bench.put(bench.normal(sum(queries), 16, 128, dtype=dtype))
        batch = bench.put_batch(paged.attention)

        def call() -> object:
            batch.memo.clear()
            return op(q, cache, batch)

        return call

    return spec, size, make
