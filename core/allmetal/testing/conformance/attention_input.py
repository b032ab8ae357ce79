"""Level 1: from the fused projection to attention's input, and what is left in the cache.

Legend: T tokens, H query heads, K key-value heads, D head dim.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
import torch

from allmetal.platform.contract import AnyKernel
from allmetal.platform.reference.kernel import as_nhd
from allmetal.platform.specs import AttentionInputSpec
from allmetal.testing.conformance.base import (
    TOLERANCE,
    Bench,
    Conformance,
    check,
    expected_op,
    same_bits,
    title,
    torch_dtype,
)
from allmetal.testing.conformance.draws import draw_num_tokens
from allmetal.testing.conformance.paged import MAX_POSITIONS, rotary_table
from allmetal.testing.conformance.problems import ATTENTION_INPUT

NUM_TOKENS = (0, 1, 21)
NUM_BLOCKS = 5
NARROW_CACHE = {"float8_e4m3fn": 4e-2, "float8_e5m2": 8e-2}
"""A value that falls on the other side of a rounding step differs by that step."""
PLAIN = [s for s in ATTENTION_INPUT if s.rotary_dim == s.head_dim and s.qk_norm == "head"]


class AttentionInputConformance(Conformance):
    level = 1

    @pytest.mark.parametrize("spec", ATTENTION_INPUT, ids=title)
    def test_attention_input_is_what_it_claims(
        self, bench: Bench, spec: AttentionInputSpec
    ) -> None:
        hold(bench, spec, bench.claiming(spec), NUM_TOKENS)

    @pytest.mark.parametrize("number", range(8))
    def test_attention_input_of_any_shape_is_what_it_claims(
        self, bench: Bench, number: int
    ) -> None:
        spec, kernels = bench.drawn("attention_input")
        most = NUM_BLOCKS * spec.block_size
        hold(bench, spec, kernels, [min(most, draw_num_tokens(bench.generator))])

    @pytest.mark.parametrize("spec", PLAIN, ids=title)
    def test_attention_input_takes_rows_that_lie_apart(
        self, bench: Bench, spec: AttentionInputSpec
    ) -> None:
        hold(bench, spec, bench.claiming(spec), NUM_TOKENS, apart=True)

    @pytest.mark.parametrize("spec", PLAIN, ids=title)
    def test_attention_input_keeps_nothing_from_one_call_to_the_next(
        self, bench: Bench, spec: AttentionInputSpec
    ) -> None:
        for kernel in bench.claiming(spec):
            op = kernel.build(spec)
            case, other = Case(bench, spec, 21), Case(bench, spec, 13)
            other.qkv *= 30
            (q, cache), _, (q_again, cache_again) = (c.on(bench, op) for c in (case, other, case))
            check(q_again, q, spec.dtype)
            assert same_bits(case.split(cache)[1], case.split(cache_again)[1])


def hold(
    bench: Bench,
    spec: AttentionInputSpec,
    kernels: Iterable[AnyKernel],
    sizes: Iterable[int],
    *,
    apart: bool = False,
) -> None:
    """Queries and the cache, slot by slot: what is written, and that nothing else is."""
    tolerance = NARROW_CACHE.get(spec.kv_dtype, TOLERANCE[spec.dtype])
    for num_tokens in sizes:
        case = Case(bench, spec, num_tokens)
        expected_q, expected_kv = case.exactly()
        for kernel in kernels:
            q, cache = case.on(bench, kernel.build(spec), apart=apart)
            check(q, expected_q, spec.dtype)
            assert q.is_contiguous()
            kv, others = case.split(cache)
            check(kv.to(expected_kv), expected_kv, "float64", tolerance=tolerance)
            assert same_bits(others, case.split(case.cache)[1]), "a slot of nobody was written"


class Case:
    """One random problem."""

    def __init__(self, bench: Bench, spec: AttentionInputSpec, num_tokens: int) -> None:
        self.spec = spec
        heads = spec.num_heads + 2 * spec.num_kv_heads
        self.qkv = bench.normal(num_tokens, heads * spec.head_dim, dtype=spec.dtype)
        self.positions = bench.integers(0, MAX_POSITIONS, num_tokens)
        self.cos_sin = rotary_table(spec.rotary_dim) if spec.rotary_dim else None
        order = torch.randperm(NUM_BLOCKS * spec.block_size, generator=bench.generator)
        self.slots, self.unused = order[:num_tokens], order[num_tokens:]
        pages = (NUM_BLOCKS, 2, spec.block_size, spec.num_kv_heads, spec.head_dim)
        # A layout is its own way back: the axes it swaps.
        shape = as_nhd(torch.empty(pages, device="meta"), spec.kv_layout).shape
        self.cache = bench.normal(*shape).to(torch_dtype(spec.kv_dtype))
        self.weights: tuple[torch.Tensor, ...] = ()
        if spec.qk_norm != "none":
            sizes = (1, 1) if spec.qk_norm == "head" else (spec.num_heads, spec.num_kv_heads)
            self.weights = tuple(
                bench.normal(size * spec.head_dim, dtype=spec.dtype) for size in sizes
            )

    def on(
        self, bench: Bench, op: Any, *, apart: bool = False
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """q and the cache after, back on the host."""
        cache = bench.put(self.cache)
        table = None if self.cos_sin is None else bench.put(self.cos_sin)

        def write(qkv: torch.Tensor, slots: torch.Tensor, *rest: torch.Tensor) -> torch.Tensor:
            positions, *weights = rest
            result = op(qkv, positions, table, cache, slots, *weights)
            assert isinstance(result, torch.Tensor)
            return result

        qkv = (bench.put_apart if apart else bench.put)(self.qkv)
        q = bench.call(write, qkv, *map(bench.put, (self.slots, self.positions, *self.weights)))
        return bench.get(q), bench.get(cache)

    def exactly(self) -> tuple[torch.Tensor, torch.Tensor]:
        """q [T, H, D] and the rows written [T, 2 K D], by the reference."""
        cache = self.cache.double() if self.cache.dtype.itemsize > 1 else self.cache.clone()
        spec = self.spec if self.cache.dtype.itemsize == 1 else _wide(self.spec)
        weights = (w.double() for w in self.weights)
        q = expected_op(spec)(
            self.qkv.double(), self.positions, self.cos_sin, cache, self.slots, *weights
        )
        return q, self.split(cache)[0].double()

    def split(self, cache: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(rows of the slots written, rows of all others), each [.., 2 K D]."""
        size = self.spec.block_size
        raw = cache.view(torch.uint8) if cache.dtype.itemsize == 1 else cache
        pages = as_nhd(raw, self.spec.kv_layout)
        rows = [pages[s // size, :, s % size].flatten(1) for s in (self.slots, self.unused)]
        written, others = (row.view(cache.dtype) for row in rows)
        return written, others


def _wide(spec: AttentionInputSpec) -> AttentionInputSpec:
    return replace(spec, kv_dtype="float64")
