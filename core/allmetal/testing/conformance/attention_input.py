"""Level 1: from the fused projection to attention's input, and what is left in the cache.

Legend: T tokens, H query heads, K key-value heads, D head dim.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

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
from allmetal.testing.conformance.problems import ATTENTION_INPUT

NUM_TOKENS = (0, 1, 21)
NUM_BLOCKS, MAX_POSITIONS, BASE = 5, 2048, 10000.0
NARROW_CACHE = 4e-2
"""A value that falls on the other side of a rounding step differs by that step."""


class AttentionInputConformance(Conformance):
    @pytest.mark.parametrize("spec", ATTENTION_INPUT, ids=title)
    def test_attention_input_is_what_it_claims(
        self, bench: Bench, spec: AttentionInputSpec
    ) -> None:
        narrow = torch_dtype(spec.kv_dtype).itemsize == 1
        for kernel in bench.claiming(spec):
            for num_tokens in NUM_TOKENS:
                run = _Run(bench, spec, num_tokens)
                q, cache = run.on(bench, kernel.build(spec))
                expected_q, expected_kv = run.exactly()
                check(q, expected_q, spec.dtype)
                assert q.is_contiguous()
                kv, others = run.split(cache)
                tolerance = NARROW_CACHE if narrow else TOLERANCE[spec.dtype]
                check(kv.to(expected_kv), expected_kv, "float64", tolerance=tolerance)
                assert same_bits(others, run.split(run.cache)[1]), "a slot of nobody was written"


class _Run:
    """One random problem."""

    def __init__(self, bench: Bench, spec: AttentionInputSpec, num_tokens: int) -> None:
        self.spec = spec
        heads = spec.num_heads + 2 * spec.num_kv_heads
        self.qkv = bench.normal(num_tokens, heads * spec.head_dim, dtype=spec.dtype)
        self.positions = bench.integers(0, MAX_POSITIONS, num_tokens)
        self.cos_sin = _cos_sin(spec.rotary_dim) if spec.rotary_dim else None
        order = torch.randperm(NUM_BLOCKS * spec.block_size, generator=bench.generator)
        self.slots, self.unused = order[:num_tokens], order[num_tokens:]
        axes = (spec.block_size, spec.num_kv_heads)
        shape = (NUM_BLOCKS, 2, *(axes if spec.kv_layout == "nhd" else axes[::-1]), spec.head_dim)
        self.cache = bench.normal(*shape).to(torch_dtype(spec.kv_dtype))
        self.weights: tuple[torch.Tensor, ...] = ()
        if spec.qk_norm != "none":
            sizes = (1, 1) if spec.qk_norm == "head" else (spec.num_heads, spec.num_kv_heads)
            self.weights = tuple(
                bench.normal(size * spec.head_dim, dtype=spec.dtype) for size in sizes
            )

    def on(self, bench: Bench, op: object) -> tuple[torch.Tensor, torch.Tensor]:
        """q and the cache after, back on the host."""
        assert callable(op)
        cache = bench.put(self.cache)
        table = None if self.cos_sin is None else bench.put(self.cos_sin)

        def write(qkv: torch.Tensor, slots: torch.Tensor, *rest: torch.Tensor) -> torch.Tensor:
            positions, *weights = rest
            result = op(qkv, positions, table, cache, slots, *weights)
            assert isinstance(result, torch.Tensor)
            return result

        inputs = (self.qkv, self.slots, self.positions, *self.weights)
        q = bench.call(write, *map(bench.put, inputs))
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
        pages = raw if self.spec.kv_layout == "nhd" else raw.transpose(2, 3)
        rows = [pages[s // size, :, s % size].flatten(1) for s in (self.slots, self.unused)]
        written, others = (row.view(cache.dtype) for row in rows)
        return written, others


def _wide(spec: AttentionInputSpec) -> AttentionInputSpec:
    return replace(spec, kv_dtype="float64")


def _cos_sin(rotary_dim: int) -> torch.Tensor:
    speeds = BASE ** -(torch.arange(0, rotary_dim, 2).double() / rotary_dim)
    angles = torch.arange(MAX_POSITIONS).double()[:, None] * speeds
    return torch.cat([angles.cos(), angles.sin()], dim=-1).float()
