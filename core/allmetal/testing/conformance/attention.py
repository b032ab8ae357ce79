"""Level 1: attention over a paged cache that holds NaN wherever no query may look."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

from allmetal.platform.contract import Supported
from allmetal.platform.specs import AttentionInputSpec, AttentionSpec
from allmetal.testing.batches import PagedBatch, paged_batch
from allmetal.testing.conformance.base import (
    POISON,
    Bench,
    Conformance,
    check,
    expected_op,
    title,
    torch_dtype,
)
from allmetal.testing.conformance.problems import ATTENTION

BATCHES: Mapping[str, tuple[list[int], list[int]]] = {
    "empty": ([], []),
    "one token": ([1], [1]),
    "prefill": ([19, 1, 48], [19, 1, 48]),
    "decode": ([1, 1, 1, 1], [1, 16, 17, 75]),
    "mixed": ([1, 21, 1, 5], [33, 61, 2, 64]),
}


class AttentionConformance(Conformance):
    @pytest.mark.parametrize("spec", ATTENTION, ids=title)
    def test_attention_is_what_it_claims(self, bench: Bench, spec: AttentionSpec) -> None:
        for kernel in bench.claiming(spec):
            op = kernel.build(spec)
            for lens in BATCHES.values():
                problem = make_problem(bench, spec, lens)
                check(run(bench, spec, op, problem), exactly(spec, problem), spec.dtype)

    @pytest.mark.parametrize("spec", [s for s in ATTENTION if s.window == 24], ids=title)
    def test_blocks_before_the_window_may_be_given_away(
        self, bench: Bench, spec: AttentionSpec
    ) -> None:
        """Their entries point to the null block, which holds NaN."""
        for kernel in bench.claiming(spec):
            problem = make_problem(bench, spec, ([2, 1], [90, 77]))
            expected = exactly(spec, problem)
            for row, first in enumerate((90 - 2 + 1 - 24, 77 - 1 + 1 - 24)):
                problem.paged.attention.block_table[row, : first // spec.block_size] = 0
            check(run(bench, spec, kernel.build(spec), problem), expected, spec.dtype)

    @pytest.mark.parametrize("spec", ATTENTION[:2], ids=title)
    def test_a_sequences_result_does_not_depend_on_its_neighbours(
        self, bench: Bench, spec: AttentionSpec
    ) -> None:
        """Within rounding: kernels may sum in another order."""
        for kernel in bench.claiming(spec):
            op = kernel.build(spec)
            problem = make_problem(bench, spec, BATCHES["mixed"])
            together = run(bench, spec, op, problem)
            for row, alone in enumerate(problem.apart()):
                first = int(problem.paged.attention.query_start[row])
                rows = together[first : first + len(alone.q)]
                check(run(bench, spec, op, alone), rows, spec.dtype)


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """q of the step [T, H, D]; k and v [all tokens, K, D] of everything in the cache."""

    paged: PagedBatch
    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    sinks: torch.Tensor | None

    def apart(self) -> list[Problem]:
        """Each sequence as a batch of its own, over the same blocks."""
        return [self._only(row) for row in range(len(self.paged.attention.host_seq_lens))]

    def _only(self, row: int) -> Problem:
        batch = self.paged.attention
        n, s = batch.host_query_lens[row], batch.host_seq_lens[row]
        q0, s0 = sum(batch.host_query_lens[:row]), sum(batch.host_seq_lens[:row])
        alone = replace(
            batch,
            query_start=torch.tensor([0, n], dtype=torch.int32),
            seq_lens=batch.seq_lens[row : row + 1],
            block_table=batch.block_table[row : row + 1],
            slot_mapping=batch.slot_mapping[q0 : q0 + n],
            max_query_len=n,
            max_seq_len=s,
            host_query_lens=[n],
            host_seq_lens=[s],
            memo={},
        )
        paged = PagedBatch(
            attention=alone,
            history=self.paged.history[s0 : s0 + s],
            query_index=torch.arange(s - n, s),
            num_blocks=self.paged.num_blocks,
        )
        k, v = self.k[s0 : s0 + s], self.v[s0 : s0 + s]
        return Problem(paged=paged, q=self.q[q0 : q0 + n], k=k, v=v, sinks=self.sinks)


def make_problem(bench: Bench, spec: AttentionSpec, lens: tuple[list[int], list[int]]) -> Problem:
    paged = paged_batch(*lens, spec.block_size, generator=bench.generator)
    kv = (len(paged.history), spec.num_kv_heads, spec.head_dim)
    return Problem(
        paged=paged,
        q=2 * bench.normal(len(paged.query_index), spec.num_heads, spec.head_dim, dtype=spec.dtype),
        k=bench.normal(*kv, dtype=spec.dtype),
        v=bench.normal(*kv, dtype=spec.dtype),
        sinks=bench.normal(spec.num_heads, dtype=spec.dtype) if spec.sinks else None,
    )


def run(bench: Bench, spec: AttentionSpec, op: Any, problem: Problem) -> torch.Tensor:
    """The op's answer, over a cache written in the op's layout by a kernel that knows it."""
    paged = problem.paged
    shape = op.cache_shape(paged.num_blocks)
    assert shape[0] == paged.num_blocks
    cache = bench.put(_poisoned(shape, torch_dtype(spec.kv_dtype)))
    writer = _writer(bench, spec, op.kv_layout)
    nothing = problem.k.new_zeros(len(problem.k), spec.num_heads, spec.head_dim)
    qkv = torch.cat([nothing, problem.k, problem.v], dim=1).flatten(1)
    slots = bench.put(paged.history)
    writer(bench.put(qkv), torch.zeros_like(slots), None, cache, slots)
    sinks = None if problem.sinks is None else bench.put(problem.sinks)
    batch = bench.put_batch(paged.attention)
    out = bench.call(lambda q, c: op(q, c, batch, sinks), bench.put(problem.q), cache)
    return bench.get(out)


def exactly(spec: AttentionSpec, problem: Problem) -> torch.Tensor:
    """The reference in float64, over keys and values as the cache's type keeps them."""
    exact = replace(spec, kv_dtype="float64")
    op = expected_op(exact)
    cache = torch.full(op.cache_shape(problem.paged.num_blocks), POISON, dtype=torch.float64)
    block, offset = (
        problem.paged.history // spec.block_size,
        problem.paged.history % spec.block_size,
    )
    for i, x in enumerate((problem.k, problem.v)):
        cache[block, i, offset] = _kept(x, spec.kv_dtype)
    sinks = None if problem.sinks is None else problem.sinks.double()
    out = op(problem.q.double(), cache, problem.paged.attention, sinks)
    assert isinstance(out, torch.Tensor)
    return out


def _kept(x: torch.Tensor, kv_dtype: str) -> torch.Tensor:
    dtype = torch_dtype(kv_dtype)
    if dtype.itemsize > 1:
        return x.to(dtype).double()
    limit = torch.finfo(dtype).max
    return x.clamp(-limit, limit).to(dtype).double()


def _poisoned(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """NaN in every slot.  Bytes of 0x7f are NaN in 8-bit floating point."""
    if dtype.itemsize > 1:
        return torch.full(shape, POISON, dtype=dtype)
    return torch.full(shape, 0x7F, dtype=torch.uint8).view(dtype)


def _writer(bench: Bench, spec: AttentionSpec, layout: str) -> Any:
    wanted = AttentionInputSpec(
        dtype=spec.dtype,
        kv_dtype=spec.kv_dtype,
        num_heads=spec.num_heads,
        num_kv_heads=spec.num_kv_heads,
        head_dim=spec.head_dim,
        block_size=spec.block_size,
        kv_layout=layout,
        rotary_dim=0,
    )
    offered = bench.all["attention_input"]
    takes = [k for k in offered if isinstance(k.supports(wanted), Supported)]
    assert takes, f"no attention_input kernel writes the layout {layout!r} of its attention"
    return takes[0].build(wanted)
