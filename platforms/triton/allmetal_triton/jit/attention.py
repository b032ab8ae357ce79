"""Paged attention over scheduled items: prefill, decode and what lies between in one kernel.

A program takes one item of one key-value head.  Its rows are tokens times the query heads of the
group, so that keys and values are read once for all of them.  Keys come a tile at a time, and the
softmax runs on from tile to tile.  Where an item is one of several parts of the same rows, parts
leave their sums in memory and the last to finish adds them up.

Source of the running softmax: Milakov and Gimelshein, arXiv:1805.02867; of split keys:
Flash-Decoding, Dao et al., 2023.

Legend: M rows, N keys of a tile, D head dim.  Scores are in units of log2.
"""

from __future__ import annotations

import triton
import triton.language as tl

from allmetal_triton.jit.combine import finish
from allmetal_triton.jit.early import let_next_begin, wait_for_last

LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def _scores(q, k, scale, SOFT_CAP: tl.constexpr, PRECISION: tl.constexpr):
    """q [M, D], k [N, D] -> [M, N]."""
    s = tl.dot(q, tl.trans(k), input_precision=PRECISION)
    if SOFT_CAP is not None:
        # c tanh(x / c), with tanh(x) = 2 sigmoid(2 x) - 1.
        return (2.0 * tl.sigmoid(s * (2.0 * scale / SOFT_CAP)) - 1.0) * (SOFT_CAP * LOG2_E)
    return s * (scale * LOG2_E)


@triton.jit
def _number(x):
    """Zero for the code that is zero with a sign in usual formats, and no number where it has none:
    others than our own writer leave it in a cache."""
    if x.dtype.is_fp8e4b8():
        x = _zero_for_none(x)
    if x.dtype.is_fp8e5b16():
        x = _zero_for_none(x)
    return x


@triton.jit
def _zero_for_none(x):
    code = x.to(tl.int8, bitcast=True)
    return tl.where(code == -128, tl.zeros_like(code), code).to(x.dtype, bitcast=True)


@triton.jit
def _page(pages, at, first, stop, PAGE: tl.constexpr, N: tl.constexpr):
    """The block of each key from `at` on, one for all where a block holds the whole tile."""
    if PAGE % N == 0:
        return tl.load(pages + at // PAGE, mask=at < stop, other=0).to(tl.int64)
    else:
        key = at + tl.arange(0, N)
        readable = (key >= first) & (key < stop)
        return tl.load(pages + key // PAGE, mask=readable, other=0).to(tl.int64)


# fmt: off
@triton.jit
def _tiles(
    state, low, high, first, stop, q, position, pages, keys, strides, scale,
    DIM: tl.constexpr, PAGE: tl.constexpr, WINDOW: tl.constexpr, SOFT_CAP: tl.constexpr,
    PRECISION: tl.constexpr, N: tl.constexpr, D: tl.constexpr, MASKED: tl.constexpr,
):
    """Run on over the keys low .. high - 1 in tiles of N.

    MASKED: some row may not see some of them, or they lie outside first .. stop - 1 and must not
    be read.  `strides`: of blocks and tokens, and from a key to its value.
    """
    # fmt: on
    top, total, acc = state
    block_stride, token_stride, value_offset = strides
    channel = tl.arange(0, D)
    # Pages are looked up a tile ahead, so that the loads of keys and values wait for no other.
    page = _page(pages, low, first, stop, PAGE, N)
    for at in range(low, high, N):
        key = at + tl.arange(0, N)
        readable = (key >= first) & (key < stop)
        base = page * block_stride + (key % PAGE) * token_stride
        page = _page(pages, at + N, first, stop, PAGE, N)
        place = base[:, None] + channel[None, :]
        known = (channel < DIM)[None, :] & (readable[:, None] if MASKED else True)
        if MASKED or DIM != D:
            k = tl.load(keys + place, mask=known, other=0.0)
            v = tl.load(keys + value_offset + place, mask=known, other=0.0)
        else:
            k = tl.load(keys + place)
            v = tl.load(keys + value_offset + place)
        s = _scores(q, _number(k).to(q.dtype), scale, SOFT_CAP, PRECISION)
        if MASKED:
            visible = (key[None, :] <= position[:, None]) & readable[None, :]
            if WINDOW:
                visible = visible & (key[None, :] > position[:, None] - WINDOW)
            s = tl.where(visible, s, float("-inf"))
        new_top = tl.maximum(top, tl.max(s, axis=1))
        # A row that has seen nothing yet has no finite maximum to subtract.
        finite = tl.where(new_top == float("-inf"), 0.0, new_top) if MASKED else new_top
        p = tl.exp2(s - finite[:, None])
        decay = tl.exp2(top - finite)
        top = new_top
        total = total * decay + tl.sum(p, axis=1)
        acc = acc * decay[:, None]
        acc = tl.dot(p.to(q.dtype), _number(v).to(q.dtype), acc, input_precision=PRECISION)
    return top, total, acc


@triton.jit
def _start(sinks, heads, part, M: tl.constexpr, D: tl.constexpr):
    """Maximum, sum and weighted values before the first key; a sink counts in one part only."""
    top = tl.full([M], float("-inf"), dtype=tl.float32)
    total = tl.zeros([M], dtype=tl.float32)
    if sinks is not None:
        counts = part == 0
        sink = tl.load(sinks + heads).to(tl.float32) * LOG2_E
        top = tl.where(counts, sink, top)
        total = tl.where(counts, 1.0, total)
    return top, total, tl.zeros([M, D], dtype=tl.float32)


@triton.jit
def _span(tile, part, num_parts, query_len, context, M: tl.constexpr, GROUP: tl.constexpr,
          WINDOW: tl.constexpr, N: tl.constexpr):  # fmt: skip
    """The keys of one part: (low, stop) to go over, `first` and on may be read, and all rows see
    those from `clear` to `shared` - 1."""
    shared = context + tile * M // GROUP + 1
    stop = context + tl.minimum(query_len, (tile * M + M - 1) // GROUP + 1)
    first = tl.maximum(shared - WINDOW, 0) if WINDOW else 0
    clear = tl.maximum(stop - WINDOW, 0) if WINDOW else 0
    aligned = first // N * N
    share = tl.cdiv(tl.cdiv(stop - aligned, N), num_parts) * N
    low = aligned + part * share
    return low, tl.minimum(stop, low + share), first, clear, shared


# fmt: off
@triton.jit(
    do_not_specialize=["table_stride"], do_not_specialize_on_alignment=["block_table"],
)
def attention(
    q, cache, out, block_table, items, counters, part_sums, part_values, sinks, scale,
    q_stride, table_stride, block_stride, value_offset, token_stride, head_stride,
    KV_HEADS: tl.constexpr, GROUP: tl.constexpr, DIM: tl.constexpr, PAGE: tl.constexpr,
    WINDOW: tl.constexpr, SOFT_CAP: tl.constexpr, PHASES: tl.constexpr, PRECISION: tl.constexpr,
    M: tl.constexpr, N: tl.constexpr, D: tl.constexpr, ROWS: tl.constexpr, AT_ONCE: tl.constexpr,
    PARTS: tl.constexpr, EARLY: tl.constexpr,
):
    """q [T, KV_HEADS * GROUP, DIM], `q_stride` between tokens; out the same, contiguous.

    PHASES: tiles that all rows see in full are done without masks; else every tile has them.
    A cache read as half of what it stands for (`target.halved`) has `scale` make up for its keys.
    ROWS: rows an item can really have; parts are added up AT_ONCE rows of PARTS parts at a time.
    """
    let_next_begin(EARLY)
    wait_for_last(EARLY)
    slot, head = tl.program_id(0) // KV_HEADS, tl.program_id(0) % KV_HEADS
    item = items + slot * 8
    seq = tl.load(item)
    if seq < 0:
        return
    tile, part, num_parts = tl.load(item + 1), tl.load(item + 2), tl.load(item + 3)
    begin, query_len, context = tl.load(item + 4), tl.load(item + 5), tl.load(item + 6)

    row = tile * M + tl.arange(0, M)
    token = row // GROUP
    heads = head * GROUP + row % GROUP
    channel = tl.arange(0, D)
    inside = (token < query_len)[:, None] & (channel < DIM)[None, :]
    q_place = (begin + token).to(tl.int64) * q_stride + heads * DIM
    q_MD = tl.load(q + q_place[:, None] + channel[None, :], mask=inside, other=0.0)

    low, stop, first, clear, shared = _span(
        tile, part, num_parts, query_len, context, M, GROUP, WINDOW, N)
    state = _start(sinks, heads, part, M, D)
    pages = block_table + seq.to(tl.int64) * table_stride
    keys = cache + head * head_stride
    strides = (block_stride, token_stride, value_offset)
    place = context + token
    middle, high = low, low
    if PHASES:
        if WINDOW:
            middle = tl.minimum(tl.maximum(tl.cdiv(clear, N) * N, low), tl.cdiv(stop, N) * N)
            state = _tiles(state, low, middle, first, stop, q_MD, place, pages, keys, strides,
                           scale, DIM, PAGE, WINDOW, SOFT_CAP, PRECISION, N, D, True)
        high = tl.maximum(tl.minimum(shared, stop) // N * N, middle)
        state = _tiles(state, middle, high, first, stop, q_MD, place, pages, keys, strides,
                       scale, DIM, PAGE, WINDOW, SOFT_CAP, PRECISION, N, D, False)
    state = _tiles(state, high, stop, first, stop, q_MD, place, pages, keys, strides,
                   scale, DIM, PAGE, WINDOW, SOFT_CAP, PRECISION, N, D, True)
    if cache.dtype.element_ty.is_fp8e4b8():
        state = (state[0], state[1], state[2] * 2.0)
    if cache.dtype.element_ty.is_fp8e5b16():
        state = (state[0], state[1], state[2] * 2.0)
    finish(state, out, slot, head, tile, part, num_parts, begin, query_len, counters, part_sums,
           part_values, KV_HEADS, GROUP, DIM, M, D, ROWS, AT_ONCE, PARTS)
    # fmt: on
