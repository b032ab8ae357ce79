"""Attention problems over a paged cache, and how a kernel is given one.

Legend: T tokens, H query heads, K key-value heads, D head dim.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import torch

from allmetal.platform.batch import AttentionBatch
from allmetal.platform.reference import kernels as reference_kernels
from allmetal.platform.reference.kernel import LAYOUTS, as_nhd
from allmetal.platform.select import choose
from allmetal.platform.specs import AttentionInputSpec, AttentionSpec, block_axis
from allmetal.testing.batches import PagedBatch, paged_batch
from allmetal.testing.conformance.base import POISON, Bench, expected_op, torch_dtype
from allmetal.testing.poison import poison

MAX_POSITIONS = 2048
_BASE = 10000.0

Lengths: TypeAlias = tuple[list[int], list[int]]
"""(new tokens, tokens in the cache with them) of each sequence."""


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


def make_problem(bench: Bench, spec: AttentionSpec, lens: Lengths) -> Problem:
    paged = paged_batch(*lens, spec.block_size, generator=bench.generator)
    kv = (len(paged.history), spec.num_kv_heads, spec.head_dim)
    return Problem(
        paged=paged,
        q=2 * bench.normal(len(paged.query_index), spec.num_heads, spec.head_dim, dtype=spec.dtype),
        k=bench.normal(*kv, dtype=spec.dtype),
        v=bench.normal(*kv, dtype=spec.dtype),
        sinks=bench.normal(spec.num_heads, dtype=spec.dtype) if spec.sinks else None,
    )


def run(
    bench: Bench,
    spec: AttentionSpec,
    op: Any,
    problem: Problem,
    *,
    cache: torch.Tensor | None = None,
    batch: AttentionBatch | None = None,
    apart: bool = False,
) -> torch.Tensor:
    """The op's answer.  `apart`: the rows of q lie apart.

    The cache is laid out slot by slot where its layout is a public one, and by a kernel that knows
    the layout otherwise.
    """
    if cache is None:
        public = op.kv_layout in LAYOUTS
        cache = (laid_out if public else written)(bench, spec, op, problem)
    sinks = None if problem.sinks is None else bench.put(problem.sinks)
    given = bench.put_batch(problem.paged.attention) if batch is None else batch
    q = (bench.put_apart if apart else bench.put)(problem.q)
    out = bench.call(lambda q, c: op(q, c, given, sinks), q, cache)
    return bench.get(out)


def laid_out(bench: Bench, spec: AttentionSpec, op: Any, problem: Problem) -> torch.Tensor:
    """A cache in a public layout, NaN where nothing is."""
    num_blocks = problem.paged.num_blocks
    cache = torch.empty(op.cache_shape(num_blocks), dtype=torch_dtype(spec.kv_dtype))
    pages = as_nhd(poison(cache), op.kv_layout)
    assert pages.shape == (num_blocks, 2, spec.block_size, spec.num_kv_heads, spec.head_dim)
    if cache.dtype.itemsize == 1:
        pages = pages.view(torch.uint8)
    slots = problem.paged.history
    for i, x in enumerate((problem.k, problem.v)):
        kept = _kept(x, spec.kv_dtype)
        pages[slots // spec.block_size, i, slots % spec.block_size] = (
            kept.view(torch.uint8) if kept.dtype.itemsize == 1 else kept
        )
    return bench.put(cache)


def written(bench: Bench, spec: AttentionSpec, op: Any, problem: Problem) -> torch.Tensor:
    """A cache in the op's own layout, written by a kernel that knows it."""
    return _write(bench, spec, op, problem, rotary_dim=0)[1]


def through_its_writer(
    bench: Bench, spec: AttentionSpec, op: Any, problem: Problem
) -> tuple[torch.Tensor, Problem]:
    """As a layer does it: (the op's answer to queries and a cache that its writer has rotated,
    the problem with queries and keys that the reference has rotated)."""
    rotary_dim = spec.head_dim // 2 * 2
    q, cache = _write(bench, spec, op, problem, rotary_dim=rotary_dim)
    given = replace(problem, q=bench.get(q)[problem.paged.query_index])
    out = run(bench, spec, op, given, cache=cache)
    at = _positions(problem)
    turned = replace(
        problem,
        q=_turn(problem.q, at[problem.paged.query_index], rotary_dim, spec.dtype),
        k=_turn(problem.k, at, rotary_dim, spec.dtype),
    )
    return out, turned


def _write(
    bench: Bench, spec: AttentionSpec, op: Any, problem: Problem, *, rotary_dim: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """(q [all tokens, H, D], cache) after the whole history went through the writer that a model
    gets.  Checks that no block is touched but those of the tokens."""
    num_blocks = problem.paged.num_blocks
    shape, axis = op.cache_shape(num_blocks), block_axis(op.kv_layout)
    assert shape[axis] == num_blocks
    cache = poison(bench.put(torch.empty(shape, dtype=torch_dtype(spec.kv_dtype))))
    before = bench.get(cache).clone()
    wanted = AttentionInputSpec(
        dtype=spec.dtype,
        kv_dtype=spec.kv_dtype,
        num_heads=spec.num_heads,
        num_kv_heads=spec.num_kv_heads,
        head_dim=spec.head_dim,
        block_size=spec.block_size,
        kv_layout=op.kv_layout,
        rotary_dim=rotary_dim,
    )
    writer = choose(bench.all["attention_input"], wanted).kernel.build(wanted)
    q = problem.k.new_zeros(len(problem.k), spec.num_heads, spec.head_dim)
    q[problem.paged.query_index] = problem.q
    qkv = bench.put(torch.cat([q, problem.k, problem.v], dim=1).flatten(1))
    table = bench.put(rotary_table(rotary_dim)) if rotary_dim else None
    slots, at = bench.put(problem.paged.history), bench.put(_positions(problem))
    q = writer(qkv, at, table, cache, slots)
    taken = set((problem.paged.history // spec.block_size).tolist())
    others = [block for block in range(num_blocks) if block not in taken]
    left, right = (x.transpose(0, axis)[others].contiguous() for x in (bench.get(cache), before))
    assert torch.equal(left.view(torch.uint8), right.view(torch.uint8)), (
        "a block of nobody was written"
    )
    return q, cache


def _positions(problem: Problem) -> torch.Tensor:
    """Of every token in the cache."""
    lens = problem.paged.attention.host_seq_lens
    return torch.cat([torch.arange(n) for n in (0, *lens)])


def _turn(x: torch.Tensor, at: torch.Tensor, rotary_dim: int, dtype: str) -> torch.Tensor:
    """x [T, heads, D] rotated by the reference, rounded to `dtype`."""
    heads, size = x.shape[1:]
    spec = AttentionInputSpec(
        dtype=dtype,
        kv_dtype=dtype,
        num_heads=heads,
        num_kv_heads=1,
        head_dim=size,
        block_size=1,
        kv_layout="nhd",
        rotary_dim=rotary_dim,
    )
    (kernel,) = reference_kernels()["attention_input"]
    nothing = x.new_zeros(len(x), 2, size)
    cache = x.new_zeros(1, 2, 1, 1, size)
    q = kernel.build(spec)(
        torch.cat([x, nothing], dim=1).flatten(1),
        at,
        rotary_table(rotary_dim),
        cache,
        torch.zeros_like(at),
    )
    assert isinstance(q, torch.Tensor)
    return q


def rotary_table(rotary_dim: int) -> torch.Tensor:
    """[MAX_POSITIONS, rotary_dim] float32, as `AttentionInputOp` takes it."""
    speeds = _BASE ** -(torch.arange(0, rotary_dim, 2).double() / rotary_dim)
    angles = torch.arange(MAX_POSITIONS).double()[:, None] * speeds
    return torch.cat([angles.cos(), angles.sin()], dim=-1).float()


def exactly(spec: AttentionSpec, problem: Problem) -> torch.Tensor:
    """The reference in float64, over keys and values as the cache's type keeps them."""
    exact = replace(spec, kv_dtype="float64")
    op = expected_op(exact)
    cache = torch.full(op.cache_shape(problem.paged.num_blocks), POISON, dtype=torch.float64)
    slots = problem.paged.history
    for i, x in enumerate((problem.k, problem.v)):
        kept = _kept(x, spec.kv_dtype).double()
        cache[slots // spec.block_size, i, slots % spec.block_size] = kept
    sinks = None if problem.sinks is None else problem.sinks.double()
    out = op(problem.q.double(), cache, problem.paged.attention, sinks)
    assert isinstance(out, torch.Tensor)
    return out


def _kept(x: torch.Tensor, kv_dtype: str) -> torch.Tensor:
    """In the cache's type; one of 8 bits saturates."""
    dtype = torch_dtype(kv_dtype)
    if dtype.itemsize > 1 or not dtype.is_floating_point:
        return x.to(dtype)
    limit = torch.finfo(dtype).max
    return x.clamp(-limit, limit).to(dtype)
