"""Paged attention with many rows on Hopper: copies, products and softmax at the same time.

Source of the shape of it: FlashAttention-3, Shah et al., arXiv:2407.08608.  One warp asks the copy
engine for tiles of keys and values, page by page; two warp groups of 64 rows each multiply.  A
group's next scores are under way while it takes the softmax of the last ones, and so are its last
values' products.

The head is cut into slices of 64 channels, the width of the copy engine's swizzle: shared memory
is made of pieces of a page by a slice, which lie one behind the other as a tile of one slice.

Legend: M rows of a group, N keys of a tile, D head dim, S slices.  Scores are in units of log2.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from allmetal_cuda.jit.versions import meet

SLICE = gl.constexpr(64)
M = gl.constexpr(64)
LOG2_E = gl.constexpr(1.4426950408889634)


# ---- copies --------------------------------------------------------------------------------


@gluon.jit
def _pages(table, at, stop, PAGE: gl.constexpr, BOX: gl.constexpr, N: gl.constexpr):
    """The first row, in a cache of rows of tokens, of each piece of the tile at `at`."""
    rows = ()
    for piece in gl.static_range(N // BOX):
        key = at + piece * BOX
        page = gl.load(table + key // PAGE, mask=key < stop, other=0)
        rows += (page * (2 * PAGE) + key % PAGE,)
    return rows


@gluon.jit
def _copy_tile(cache, rows, offset, column, buffers, stage, ready, BOX: gl.constexpr,
               N: gl.constexpr, D: gl.constexpr):  # fmt: skip
    mbarrier.expect(ready.index(stage), N * D * 2)
    for piece in gl.static_range(N // BOX):
        for part in gl.static_range(D // SLICE):
            place = (stage * (D // SLICE) + part) * (N // BOX) + piece
            tma.async_copy_global_to_shared(
                cache, [rows[piece] + offset, column + part * SLICE], ready.index(stage),
                buffers.index(place))  # fmt: skip


@gluon.jit
def _copy(cache, table, column, low, stop, k_pieces, v_pieces, bars, PAGE: gl.constexpr,
          BOX: gl.constexpr, N: gl.constexpr, D: gl.constexpr, STAGES: gl.constexpr):  # fmt: skip
    """One warp: keys a tile ahead of values, since they are needed first."""
    k_ready, v_ready, k_free, v_free = bars
    rows = _pages(table, low, stop, PAGE, BOX, N)
    mbarrier.wait(k_free.index(0), 1)
    _copy_tile(cache, rows, 0, column, k_pieces, 0, k_ready, BOX, N, D)
    for at in range(low, stop, N):
        turn = (at - low) // N
        stage, flip = turn % STAGES, turn // STAGES & 1
        following = _pages(table, at + N, stop, PAGE, BOX, N)
        if at + N < stop:
            after, after_flip = (turn + 1) % STAGES, (turn + 1) // STAGES & 1
            mbarrier.wait(k_free.index(after), after_flip ^ 1)
            _copy_tile(cache, following, 0, column, k_pieces, after, k_ready, BOX, N, D)
        mbarrier.wait(v_free.index(stage), flip ^ 1)
        _copy_tile(cache, rows, PAGE, column, v_pieces, stage, v_ready, BOX, N, D)
        rows = following


# ---- products ------------------------------------------------------------------------------


@gluon.jit
def _ask_scores(q_slices, k_tiles, stage, N: gl.constexpr, D: gl.constexpr):
    """Start q k^T, [M, N]."""
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, N, 16])
    s = gl.zeros([M, N], gl.float32, layout)
    for part in gl.static_range(D // SLICE):
        k = k_tiles.index(stage * (D // SLICE) + part)
        s = warpgroup_mma(q_slices.index(part), k.permute((1, 0)), s, use_acc=part > 0,
                          is_async=True)  # fmt: skip
    return s


@gluon.jit
def _ask_values(p, v_tiles, stage, acc, D: gl.constexpr):
    """Start acc + p v, a tuple of [M, SLICE]."""
    out = ()
    for part in gl.static_range(D // SLICE):
        v = v_tiles.index(stage * (D // SLICE) + part)
        out += (warpgroup_mma(p, v, acc[part], is_async=True),)
    return out


@gluon.jit
def _blank_hidden(v_tiles, stage, at, first, stop, N: gl.constexpr, D: gl.constexpr):
    """Zero the values of keys nobody may read: their weight is 0, and 0 times NaN is not."""
    layout: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    if (at < first) | (at + N > stop):
        key = at + gl.arange(0, N, gl.SliceLayout(1, layout))
        known = ((key >= first) & (key < stop))[:, None]
        for part in gl.static_range(D // SLICE):
            tile = v_tiles.index(stage * (D // SLICE) + part)
            values = tile.load(layout)
            meet()
            tile.store(gl.where(known, values, gl.zeros_like(values)))
        fence_async_shared()
        meet()


@gluon.jit
def _soften(s, top, total, position, at, first, stop, scale, SOFT_CAP: gl.constexpr,
            WINDOW: gl.constexpr, MASKED: gl.constexpr, N: gl.constexpr):  # fmt: skip
    """One step of the running softmax: weights of the tile, maximum, sum, and what is left of
    everything before."""
    layout: gl.constexpr = s.type.layout
    if SOFT_CAP is not None:
        capped = 2.0 / (1.0 + gl.exp2(s * (-2.0 * LOG2_E * scale / SOFT_CAP))) - 1.0
        s = capped * (SOFT_CAP * LOG2_E)
        factor = 1.0
    else:
        factor = scale * LOG2_E
    if MASKED:
        key = at + gl.arange(0, N, gl.SliceLayout(0, layout))
        visible = key[None, :] <= position[:, None]
        visible = visible & ((key >= first) & (key < stop))[None, :]
        if WINDOW:
            visible = visible & (key[None, :] > position[:, None] - WINDOW)
        s = gl.where(visible, s, float("-inf"))
    new_top = gl.maximum(top, gl.max(s, axis=1) * factor)
    finite = gl.where(new_top == float("-inf"), 0.0, new_top) if MASKED else new_top
    p = gl.exp2(s * factor - finite[:, None])
    decay = gl.exp2(top - finite)
    return p, new_top, total * decay + gl.sum(p, axis=1), decay


@gluon.jit
def _decayed(acc, decay, LAYOUT: gl.constexpr, D: gl.constexpr):
    out = ()
    column = gl.convert_layout(decay, gl.SliceLayout(1, LAYOUT))[:, None]
    for part in gl.static_range(D // SLICE):
        out += (acc[part] * column,)
    return out


@gluon.jit
def _wait_values(acc, D: gl.constexpr):
    """All products asked for are done."""
    if D == SLICE:
        return (warpgroup_mma_wait(0, deps=[acc[0]]),)
    else:
        return warpgroup_mma_wait(0, deps=acc)


# fmt: off
@gluon.jit
def _steps(
    state, turn, low, high, first, stop, position, q_slices, k_tiles, v_tiles, bars, scale,
    SOFT_CAP: gl.constexpr, WINDOW: gl.constexpr, MASKED: gl.constexpr, DTYPE: gl.constexpr,
    N: gl.constexpr, D: gl.constexpr, STAGES: gl.constexpr,
):
    """Tiles low .. high - 1: ask for their scores and the values before, then soften."""
    P_LAYOUT: gl.constexpr = gl.DotOperandLayout(
        0, gl.NVMMADistributedLayout([3, 0], [4, 1], [16, SLICE, 16]), 2)
    O_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, SLICE, 16])
    k_ready, v_ready, k_free, v_free = bars
    p, top, total, acc = state
    for at in range(low, high, N):
        stage, flip = turn % STAGES, turn // STAGES & 1
        last, last_flip = (turn - 1) % STAGES, (turn - 1) // STAGES & 1
        turn += 1
        mbarrier.wait(k_ready.index(stage), flip)
        s = _ask_scores(q_slices, k_tiles, stage, N, D)
        mbarrier.wait(v_ready.index(last), last_flip)
        if MASKED and WINDOW:
            _blank_hidden(v_tiles, last, at - N, first, stop, N, D)
        acc = _ask_values(p, v_tiles, last, acc, D)
        s = warpgroup_mma_wait(D // SLICE, deps=[s])
        mbarrier.arrive(k_free.index(stage), count=1)
        new_p, top, total, decay = _soften(s, top, total, position, at, first, stop, scale,
                                           SOFT_CAP, WINDOW, MASKED, N)
        acc = _wait_values(acc, D)
        mbarrier.arrive(v_free.index(last), count=1)
        acc = _decayed(acc, decay, O_LAYOUT, D)
        p = gl.convert_layout(new_p.to(DTYPE), P_LAYOUT)
    return (p, top, total, acc), turn
    # fmt: on


# ---- one item ------------------------------------------------------------------------------


# fmt: off
@gluon.jit
def _consume(
    group, q, out, sinks, span, row, head, begin, query_len, context, q_stride, scale,
    q_buffer, k_tiles, v_tiles, bars,
    KV_HEADS: gl.constexpr, GROUP: gl.constexpr, SOFT_CAP: gl.constexpr, WINDOW: gl.constexpr,
    DTYPE: gl.constexpr, N: gl.constexpr, D: gl.constexpr, STAGES: gl.constexpr,
):
    """A warp group's M rows from `row` on."""
    WIDE: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    S_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, N, 16])
    O_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, SLICE, 16])
    P_LAYOUT: gl.constexpr = gl.DotOperandLayout(0, O_LAYOUT, 2)
    low, stop, first, shared = span
    k_ready, v_ready, k_free = bars[0], bars[1], bars[2]
    lane = row + gl.arange(0, M, gl.SliceLayout(1, WIDE))
    token = lane // GROUP
    channel = gl.arange(0, SLICE, gl.SliceLayout(0, WIDE))
    place = (begin + token).to(gl.int64) * q_stride + (head * GROUP + lane % GROUP) * D
    known = (token < query_len)[:, None]
    q_slices = q_buffer.index(group)._reinterpret(
        DTYPE, [D // SLICE, M, SLICE], q_buffer.type.layout)
    for part in gl.static_range(D // SLICE):
        at = place[:, None] + (channel + part * SLICE)[None, :]
        values = gl.load(q + at, mask=known, other=0.0)
        q_slices.index(part).store(values)
    fence_async_shared()
    meet()
    mine = row + gl.arange(0, M, gl.SliceLayout(1, S_LAYOUT))
    position = context + mine // GROUP
    top = gl.full([M], float("-inf"), gl.float32, gl.SliceLayout(1, S_LAYOUT))
    total = gl.zeros([M], gl.float32, gl.SliceLayout(1, S_LAYOUT))
    if sinks is not None:
        top = gl.load(sinks + head * GROUP + mine % GROUP).to(gl.float32) * LOG2_E
        total += 1.0
    acc = ()
    for _part in gl.static_range(D // SLICE):
        acc += (gl.zeros([M, SLICE], gl.float32, O_LAYOUT),)

    mbarrier.wait(k_ready.index(0), 0)
    s = _ask_scores(q_slices, k_tiles, 0, N, D)
    s = warpgroup_mma_wait(0, deps=[s])
    mbarrier.arrive(k_free.index(0), count=1)
    p, top, total, _decay = _soften(s, top, total, position, low, first, stop, scale, SOFT_CAP,
                                   WINDOW, True, N)
    state = (gl.convert_layout(p.to(DTYPE), P_LAYOUT), top, total, acc)
    turn = 1
    middle = low + N
    if not WINDOW:
        # Rows see the whole of a tile that ends before the first row's own place.
        middle = gl.maximum(shared // N * N, low + N)
        state, turn = _steps(state, turn, low + N, middle, first, stop, position, q_slices, k_tiles,
                             v_tiles, bars, scale, SOFT_CAP, WINDOW, False, DTYPE, N, D, STAGES)
    state, turn = _steps(state, turn, middle, stop, first, stop, position, q_slices, k_tiles,
                         v_tiles, bars, scale, SOFT_CAP, WINDOW, True, DTYPE, N, D, STAGES)
    p, top, total, acc = state
    last, last_flip = (turn - 1) % STAGES, (turn - 1) // STAGES & 1
    mbarrier.wait(v_ready.index(last), last_flip)
    _blank_hidden(v_tiles, last, low + (turn - 1) * N, first, stop, N, D)
    acc = _wait_values(_ask_values(p, v_tiles, last, acc, D), D)
    _write(acc, total, out, lane, head, begin, query_len, KV_HEADS, GROUP, D)
    # fmt: on


@gluon.jit
def _write(acc, total, out, lane, head, begin, query_len, KV_HEADS: gl.constexpr,
           GROUP: gl.constexpr, D: gl.constexpr):  # fmt: skip
    WIDE: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    O_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, SLICE, 16])
    total = gl.convert_layout(total, gl.SliceLayout(1, O_LAYOUT))
    share = 1.0 / gl.where(total > 0, total, 1.0)
    token = lane // GROUP
    place = ((begin + token).to(gl.int64) * KV_HEADS + head) * GROUP + lane % GROUP
    channel = gl.arange(0, SLICE, gl.SliceLayout(0, WIDE))
    known = (token < query_len)[:, None]
    for part in gl.static_range(D // SLICE):
        values = (acc[part] * share[:, None]).to(out.dtype.element_ty)
        at = place[:, None] * D + (channel + part * SLICE)[None, :]
        gl.store(out + at, gl.convert_layout(values, WIDE), mask=known)


# fmt: off
@gluon.jit(
    do_not_specialize=["table_stride"], do_not_specialize_on_alignment=["block_table"],
)
def hopper_attention(
    q, cache, out, block_table, items, sinks, scale, q_stride, table_stride,
    KV_HEADS: gl.constexpr, GROUP: gl.constexpr, PAGE: gl.constexpr, WINDOW: gl.constexpr,
    SOFT_CAP: gl.constexpr, N: gl.constexpr, D: gl.constexpr, BOX: gl.constexpr,
    STAGES: gl.constexpr,
):
    """Items as `allmetal_triton.jit.schedule` makes them for tiles of 2 M rows, in one part each.

    `cache` describes [2 blocks * PAGE, KV_HEADS * D] in boxes of [BOX, SLICE].
    """
    slot, head = gl.program_id(0) // KV_HEADS, gl.program_id(0) % KV_HEADS
    item = items + slot * 8
    seq = gl.load(item)
    if seq >= 0:
        tile, begin = gl.load(item + 1), gl.load(item + 4)
        query_len, context = gl.load(item + 5), gl.load(item + 6)
        DTYPE: gl.constexpr = cache.dtype
        S: gl.constexpr = D // SLICE
        shared = context + tile * (2 * M) // GROUP + 1
        stop = context + gl.minimum(query_len, (tile * (2 * M) + 2 * M - 1) // GROUP + 1)
        first = gl.maximum(shared - WINDOW, 0) if WINDOW else 0
        low = first // N * N

        q_buffer = gl.allocate_shared_memory(DTYPE, [2, S * M, SLICE], cache.layout)
        PIECES: gl.constexpr = STAGES * S * N // BOX
        k_pieces = gl.allocate_shared_memory(DTYPE, [PIECES, BOX, SLICE], cache.layout)
        v_pieces = gl.allocate_shared_memory(DTYPE, [PIECES, BOX, SLICE], cache.layout)
        k_tiles = k_pieces._reinterpret(DTYPE, [STAGES * S, N, SLICE], cache.layout)
        v_tiles = v_pieces._reinterpret(DTYPE, [STAGES * S, N, SLICE], cache.layout)
        bars = ()
        for count in gl.static_range(4):
            bar = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
            for stage in gl.static_range(STAGES):
                mbarrier.init(bar.index(stage), count=1 if count < 2 else 2)
            bars += (bar,)
        fence_async_shared()

        table = block_table + seq.to(gl.int64) * table_stride
        span = (low, stop, first, shared)
        row = tile * (2 * M)
        gl.warp_specialize([
            (_consume, (0, q, out, sinks, span, row, head, begin, query_len, context, q_stride,
                        scale, q_buffer, k_tiles, v_tiles, bars, KV_HEADS, GROUP, SOFT_CAP,
                        WINDOW, DTYPE, N, D, STAGES)),
            (_consume, (1, q, out, sinks, span, row + M, head, begin, query_len, context, q_stride,
                        scale, q_buffer, k_tiles, v_tiles, bars, KV_HEADS, GROUP, SOFT_CAP,
                        WINDOW, DTYPE, N, D, STAGES)),
            (_copy, (cache, table, head * D, low, stop, k_pieces, v_pieces, bars, PAGE, BOX, N,
                     D, STAGES)),
        ], [4, 1], [240, 24])
    # fmt: on
