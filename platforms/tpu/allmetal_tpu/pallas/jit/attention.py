"""Ragged paged attention: items of a few queries of one sequence, pages of its cache copied ahead.

Decode is bound by reading the cache once.  An item's pages come in blocks, each copied while the
one before is computed on, the first of an item while the item before ends; whole pages are copied,
all key-value heads at once, so that a copy is long.  Which queries an item has is worked out on the
device, so that a traced call serves every batch of its shapes.

Source: online softmax arXiv:2205.14135; paged cache arXiv:2309.06180.

Legend: T tokens, B sequences, I items, N blocks of the cache, P pages a sequence, H query heads,
K key-value heads, G = H / K, D head dim, W lanes of the cache, Q tokens an item, M = Q * G rows,
rounded up.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from allmetal_tpu.pallas.jit.pages import Pages
from allmetal_tpu.pallas.shapes import AttentionShape, round_up

_HIDDEN = -1e30
"""A score no query may see.  Finite: the difference of two is 0 and not NaN."""
_LANES = 128
_TABLE_BYTES = 512 * 1024
"""Of the block table in a call, half of the scalar memory; more sequences are another call."""


def ragged_paged_attention(
    q: jax.Array,
    cache: jax.Array,
    seq_lens: jax.Array,
    query_start: jax.Array,
    block_table: jax.Array,
    sinks: jax.Array | None = None,
    *,
    shape: AttentionShape,
    interpret: Any = False,
) -> jax.Array:
    """q [T, H, D], cache [N, parts, K, page, W], seq_lens [B], query_start [B + 1], block_table
    [B, P] int32, sinks [H] -> [T, H, D].

    Tokens of no sequence get 0.
    """
    num_seqs, num_pages = block_table.shape
    at_once = max(1, _TABLE_BYTES // (4 * num_pages))
    out = jnp.zeros_like(q)
    token = jnp.arange(q.shape[0], dtype=jnp.int32)[:, None, None]
    for first in range(0, num_seqs, at_once):
        last = min(num_seqs, first + at_once)
        starts = query_start[first : last + 1]
        some = _attend(
            q, cache, seq_lens[first:last], starts, block_table[first:last], sinks, shape, interpret
        )
        out = jnp.where((token >= starts[0]) & (token < starts[-1]), some, out)
    return out


def _attend(
    q: jax.Array,
    cache: jax.Array,
    seq_lens: jax.Array,
    query_start: jax.Array,
    block_table: jax.Array,
    sinks: jax.Array | None,
    s: AttentionShape,
    interpret: Any,
) -> jax.Array:
    num_tokens, num_seqs = q.shape[0], seq_lens.shape[0]
    num_items = min(num_tokens, num_seqs + num_tokens // s.queries)
    seq, first_token, items, of_token = _schedule(query_start, num_tokens, num_items, s.queries)
    end = query_start[seq + 1]
    position = seq_lens[seq] - (end - first_token)
    count = jnp.clip(end - first_token, 1, s.queries)
    tokens = first_token[:, None] + jnp.arange(s.queries, dtype=jnp.int32)
    rows = q[jnp.clip(tokens, 0, num_tokens - 1)]  # [I, Q, H, D]
    rows = rows.reshape(num_items, s.queries, s.kv_heads, s.group, s.head_dim)
    rows = rows.transpose(0, 2, 1, 3, 4).reshape(num_items, s.kv_heads, -1, s.head_dim)
    # Zeros beside a query hide what lies beside a key: padding, or the value.
    beside = (0, s.width - s.head_dim)
    rows = jnp.pad(rows, ((0, 0), (0, 0), (0, s.rows - rows.shape[2]), beside))
    scalars = (items, seq, position, count, block_table.reshape(-1))
    out = _call(scalars, rows, cache, _rows_of(sinks, s), s, block_table.shape[1], interpret)
    first = s.value_lane
    out = out[:, :, : s.queries * s.group, first : first + s.head_dim]
    out = out.reshape(-1, s.kv_heads, s.queries, s.group, s.head_dim)
    item, row = of_token
    return out[item, :, row].reshape(q.shape)


def _schedule(
    query_start: jax.Array, num_tokens: int, num_items: int, queries: int
) -> tuple[jax.Array, jax.Array, jax.Array, tuple[jax.Array, jax.Array]]:
    """Each item's sequence and first token, the number of items [1], each token's item and row."""
    lens = query_start[1:] - query_start[:-1]
    tiles = -(-lens // queries)
    ends = jnp.cumsum(tiles, dtype=jnp.int32)
    item = jnp.arange(num_items, dtype=jnp.int32)
    most = lens.shape[0] - 1
    seq = jnp.minimum(jnp.searchsorted(ends, item, side="right").astype(jnp.int32), most)
    begins = ends - tiles
    first_token = query_start[seq] + (item - begins[seq]) * queries
    token = jnp.arange(num_tokens, dtype=jnp.int32)
    of = jnp.searchsorted(query_start[1:], token, side="right").astype(jnp.int32)
    of = jnp.minimum(of, most)
    local = jnp.maximum(token - query_start[of], 0)
    its_item = jnp.clip(begins[of] + local // queries, 0, num_items)
    return seq, first_token, ends[-1:], (its_item, local % queries)


def _rows_of(sinks: jax.Array | None, s: AttentionShape) -> jax.Array:
    """What each row's running maximum begins with, [K, M, lanes]."""
    if sinks is None:
        return jnp.full((s.kv_heads, s.rows, _LANES), _HIDDEN, jnp.float32)
    heads = jnp.tile(sinks.astype(jnp.float32).reshape(s.kv_heads, s.group), (1, s.queries))
    heads = jnp.pad(heads, ((0, 0), (0, s.rows - heads.shape[1])))
    return jnp.broadcast_to(heads[:, :, None], (s.kv_heads, s.rows, _LANES))


def _call(
    scalars: tuple[jax.Array, ...],
    rows: jax.Array,
    cache: jax.Array,
    sinks: jax.Array,
    s: AttentionShape,
    num_pages: int,
    interpret: Any,
) -> jax.Array:
    """[I + cores, K, M, D]; behind the items is where steps without work leave theirs."""
    num_items = rows.shape[0]
    steps = -(-num_items // s.cores)
    block = (1, s.kv_heads, s.rows, s.width)

    def item(core: Any, step: Any) -> Any:
        return step * s.cores + core

    def read(core: Any, step: Any, num: Any, *_: Any) -> Any:
        return (jnp.clip(jnp.minimum(item(core, step), num[0] - 1), 0, num_items - 1), 0, 0, 0)

    def write(core: Any, step: Any, num: Any, *_: Any) -> Any:
        mine = item(core, step)
        return (jnp.where(mine < num[0], mine, num_items + core), 0, 0, 0)

    grid = pltpu.PrefetchScalarGridSpec(
        num_scalar_prefetch=len(scalars),
        grid=(s.cores, steps),
        in_specs=[
            pl.BlockSpec(block, read),
            pl.BlockSpec(sinks.shape, lambda *_: (0, 0, 0)),
            pl.BlockSpec(memory_space=pl.ANY),
        ],
        out_specs=pl.BlockSpec(block, write),
        scratch_shapes=[
            pltpu.VMEM((2, s.pages, s.parts, s.kv_heads, s.page, s.width), cache.dtype),
            pltpu.VMEM((s.kv_heads, s.rows, _LANES), jnp.float32),
            pltpu.VMEM((s.kv_heads, s.rows, _LANES), jnp.float32),
            pltpu.VMEM((s.kv_heads, s.rows, s.width), jnp.float32),
            pltpu.SMEM((1,), jnp.int32),
            pltpu.SemaphoreType.DMA((2,)),
        ],
    )
    return pl.pallas_call(
        functools.partial(_kernel, s=s, num_pages=num_pages),
        grid_spec=grid,
        out_shape=jax.ShapeDtypeStruct((num_items + s.cores, *block[1:]), rows.dtype),
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "arbitrary"), vmem_limit_bytes=s.vmem_limit
        ),
        interpret=interpret,
        name="ragged_paged_attention",
    )(*scalars, rows, sinks, cache)


def _kernel(num_items: Any, *refs: Any, s: AttentionShape, num_pages: int) -> None:
    seqs, positions, counts, table, q, sinks, cache, out, kv, *state = refs
    peaks, sums, values, side, arrived = state
    item = pl.program_id(1) * s.cores + pl.program_id(0)
    following = item + s.cores
    pages = Pages(
        shape=s,
        num_pages=num_pages,
        seqs=seqs,
        positions=positions,
        counts=counts,
        table=table,
        cache=cache,
        kv=kv,
        arrived=arrived,
    )

    @pl.when((pl.program_id(1) == 0) & (item < num_items[0]))
    def first_of_all() -> None:
        side[0] = 0
        pages.fetch(item, 0, 0)

    @pl.when(item < num_items[0])
    def live() -> None:
        blocks, before = pages.num_blocks(item), side[0]
        _start(sinks, peaks, sums, values, with_sinks=s.sinks)

        def compute(block: Any, _: None) -> None:
            slot = lax.rem(before + block, 2)

            @pl.when(block + 1 < blocks)
            def next_block() -> None:
                pages.fetch(item, block + 1, 1 - slot)

            @pl.when((block + 1 == blocks) & (following < num_items[0]))
            def next_item() -> None:
                pages.fetch(jnp.minimum(following, num_items[0] - 1), 0, 1 - slot)

            pages.wait(item, block, slot)
            at = (pages.first(item) + block * s.pages) * s.page
            _clear(pages, item, slot, at)

            def attend(rows: int) -> None:
                _attend_block(q, pages, item, slot, at, peaks, sums, values, rows)

            _for_rows(counts[item], s, attend)

        lax.fori_loop(0, blocks, compute, None)
        side[0] = lax.rem(before + blocks, 2)
        _for_rows(counts[item], s, functools.partial(_finish, out, sums, values))


def _for_rows(count: Any, s: AttentionShape, do: Callable[[int], None]) -> None:
    """One token's rows where an item has one token, among others that have many."""
    few = round_up(s.group, s.row_tile)
    if few == s.rows:
        do(s.rows)
        return
    pl.when(count == 1)(lambda: do(few))
    pl.when(count > 1)(lambda: do(s.rows))


def _start(sinks: Any, peaks: Any, sums: Any, values: Any, *, with_sinks: bool) -> None:
    peaks[...] = sinks[...]
    sums[...] = jnp.full(sums.shape, 1.0 if with_sinks else 0.0, jnp.float32)
    values[...] = jnp.zeros(values.shape, jnp.float32)


def _finish(out: Any, sums: Any, values: Any, rows: int) -> None:
    for head in range(sums.shape[0]):
        total = sums[head, :rows, :1]
        total = jnp.where(total == 0, 1.0, total)
        out[0, head, :rows] = (values[head, :rows] / total).astype(out.dtype)


def _clear(pages: Pages, item: Any, slot: Any, at: Any) -> None:
    """Values that no query of the item sees become 0: weighed by 0, NaN would stay."""
    s, kv = pages.shape, pages.kv
    begin, end = pages.begin(item), pages.end(item)

    @pl.when((at < begin) | (at + s.pages * s.page > end))
    def border() -> None:
        shape = (s.pages, s.page, s.width)
        position = at + lax.broadcasted_iota(jnp.int32, shape, 0) * s.page
        position += lax.broadcasted_iota(jnp.int32, shape, 1)
        visible = (position >= begin) & (position < end)
        for head in range(s.kv_heads):
            value = kv[slot, :, s.parts - 1, head].astype(jnp.float32)
            kv[slot, :, s.parts - 1, head] = jnp.where(visible, value, 0.0).astype(kv.dtype)


def _attend_block(
    q: Any,
    pages: Pages,
    item: Any,
    slot: Any,
    at: Any,
    peaks: Any,
    sums: Any,
    values: Any,
    rows: int,
) -> None:
    """Fold the block in `slot`, the first key at position `at`, into each head's softmax."""
    s, kv, position = pages.shape, pages.kv, pages.positions[item]
    keys = s.pages * s.page
    precision = lax.Precision.HIGHEST if q.dtype == jnp.float32 else None
    row = lax.broadcasted_iota(jnp.int32, (rows, 1), 0)
    # Which token a row is of: vectors of integers cannot be divided, and half a step is exact.
    token = ((row.astype(jnp.float32) + 0.5) * (1.0 / s.group)).astype(jnp.int32)
    key = at + lax.broadcasted_iota(jnp.int32, (rows, keys), 1)
    visible = (key <= position + token) & (key < pages.end(item))
    if s.window is not None:
        visible &= key > position + token - s.window

    def one(head: Any, _: None) -> None:
        query = q[0, head, :rows]
        key, value = (
            kv[slot, :, part, head].reshape(keys, s.width).astype(q.dtype)
            for part in (0, s.parts - 1)
        )
        scores = lax.dot_general(
            query,
            key,
            (((1,), (1,)), ((), ())),
            precision=precision,
            preferred_element_type=jnp.float32,
        )
        scores = scores * s.scale
        if s.soft_cap is not None:
            scores = s.soft_cap * _tanh(scores / s.soft_cap)
        scores = jnp.where(visible, scores, _HIDDEN)
        before = peaks[head, :rows]
        peak = jnp.maximum(before, jnp.max(scores, axis=1, keepdims=True))
        weights = jnp.exp(scores - peak[:, :1])
        fade = jnp.exp(before - peak)
        peaks[head, :rows] = peak
        sums[head, :rows] = sums[head, :rows] * fade + jnp.sum(weights, axis=1, keepdims=True)
        part = lax.dot_general(
            weights.astype(q.dtype),
            value,
            (((1,), (0,)), ((), ())),
            precision=precision,
            preferred_element_type=jnp.float32,
        )
        values[head, :rows] = values[head, :rows] * fade[:, :1] + part

    lax.fori_loop(0, s.kv_heads, one, None, unroll=s.kv_heads <= 4)


def _tanh(x: Any) -> Any:
    # Pallas's own asks which chip this is, which a kernel made ahead of time cannot say.
    return 1.0 - 2.0 / (1.0 + jnp.exp(2.0 * x))
