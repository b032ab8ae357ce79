"""Paged attention on Hopper: copies, products and softmax at the same time.

Source of the shape of it: FlashAttention-3, Shah et al., arXiv:2407.08608.  One warp asks the copy
engine for tiles of keys and values, page by page; two warp groups of 64 rows each multiply.  A
group's next scores are under way while it takes the softmax of the last ones, and so are its last
values' products; the groups take turns in asking, so that one multiplies under the other's
softmax.  A program takes one unit after the other, and the next one's first copies are under way
while this one is finished.

Units of few rows, bound by reading keys, are one group's; what they gain is that nothing waits
between one sequence and the next.

Legend: M rows of a group, N keys of a tile, D head dim, S slices of it.  Scores are in units of
log2.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from allmetal_cuda.jit.hopper_copies import SLICE, UNIT_WORDS, UNITS, M, copy, keys_of, take
from allmetal_cuda.jit.hopper_linear import let_next_begin, wait_for_last
from allmetal_cuda.jit.hopper_results import leave_part, write
from allmetal_cuda.jit.versions import meet

LOG2_E = gl.constexpr(1.4426950408889634)


# ---- whose turn ----------------------------------------------------------------------------
# WHO a group of warps is: "first" and "second" share a unit's rows, or "all" has them alone.


@gluon.jit
def _wait_for_turn(WHO: gl.constexpr):
    """Source of the instruction: PTX ISA, bar.  Barriers from 0 on are the compiler's."""
    if WHO == "first":
        gl.inline_asm_elementwise(
            "bar.sync 14, 256; // dummy $0", "=r", [], dtype=gl.int32, is_pure=False, pack=1
        )
    if WHO == "second":
        gl.inline_asm_elementwise(
            "bar.sync 15, 256; // dummy $0", "=r", [], dtype=gl.int32, is_pure=False, pack=1
        )


@gluon.jit
def _pass_turn(WHO: gl.constexpr):
    """From the first group to the second, or back."""
    if WHO == "first":
        gl.inline_asm_elementwise(
            "bar.arrive 15, 256; // dummy $0", "=r", [], dtype=gl.int32, is_pure=False, pack=1
        )
    if WHO == "second":
        gl.inline_asm_elementwise(
            "bar.arrive 14, 256; // dummy $0", "=r", [], dtype=gl.int32, is_pure=False, pack=1
        )


# ---- products ------------------------------------------------------------------------------


@gluon.jit
def _ask_scores(q, k_tiles, stage, N: gl.constexpr):
    """Start q k^T, [M, N]."""
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, N, 16])
    nothing = gl.zeros([M, N], gl.float32, layout)
    k = k_tiles.index(stage).permute((1, 0))
    return warpgroup_mma(q, k, nothing, use_acc=False, is_async=True)


@gluon.jit
def _blank_hidden(v_slices, stage, at, first, length, N: gl.constexpr, D: gl.constexpr):
    """Zero values that are not the sequence's: their weight is 0, and 0 times NaN is not."""
    layout: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    if (at < first) | (at + N > length):
        key = at + gl.arange(0, N, gl.SliceLayout(1, layout))
        known = ((key >= first) & (key < length))[:, None]
        for part in gl.static_range(D // SLICE):
            tile = v_slices.index(stage * (D // SLICE) + part)
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


# fmt: off
@gluon.jit
def _steps(
    state, turn, low, high, keys, position, q, k_tiles, v_tiles, v_slices, bars, scale,
    WHO: gl.constexpr, SOFT_CAP: gl.constexpr, WINDOW: gl.constexpr, MASKED: gl.constexpr,
    DTYPE: gl.constexpr, N: gl.constexpr, D: gl.constexpr, STAGES: gl.constexpr,
):
    """Tiles low .. high - 1: ask for their scores and the values before, then soften."""
    O_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, D, 16])
    P_LAYOUT: gl.constexpr = gl.DotOperandLayout(0, O_LAYOUT, 2)
    k_ready, v_ready, k_free, v_free = bars
    _, stop, first, _, length = keys
    p, top, total, acc = state
    for at in range(low, high, N):
        stage, flip = turn % STAGES, turn // STAGES & 1
        last, last_flip = (turn - 1) % STAGES, (turn - 1) // STAGES & 1
        turn += 1
        mbarrier.wait(k_ready.index(stage), flip)
        _wait_for_turn(WHO)
        s = _ask_scores(q, k_tiles, stage, N)
        mbarrier.wait(v_ready.index(last), last_flip)
        if MASKED and WINDOW:
            _blank_hidden(v_slices, last, at - N, first, length, N, D)
        acc = warpgroup_mma(p, v_tiles.index(last), acc, is_async=True)
        _pass_turn(WHO)
        s = warpgroup_mma_wait(1, deps=[s])
        mbarrier.arrive(k_free.index(stage), count=1)
        new_p, top, total, decay = _soften(s, top, total, position, at, first, stop, scale,
                                           SOFT_CAP, WINDOW, MASKED, N)
        acc = warpgroup_mma_wait(0, deps=[acc])
        mbarrier.arrive(v_free.index(last), count=1)
        acc *= gl.convert_layout(decay, gl.SliceLayout(1, O_LAYOUT))[:, None]
        p = gl.convert_layout(new_p.to(DTYPE), P_LAYOUT)
    return (p, top, total, acc), turn
    # fmt: on


# ---- one unit ------------------------------------------------------------------------------


@gluon.jit
def _ask_queries(q, q_stride, q_slices, buffer, unit, WHO: gl.constexpr, GROUP: gl.constexpr,
                 D: gl.constexpr):  # fmt: skip
    """Start copying a group's queries, zeros where there are none."""
    WIDE: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    head, row, begin, query_len = unit[0], unit[1], unit[2], unit[3]
    lane = row + gl.arange(0, M, gl.SliceLayout(1, WIDE)) + (M if WHO == "second" else 0)
    token = lane // GROUP
    channel = gl.arange(0, SLICE, gl.SliceLayout(0, WIDE))
    place = (begin + token).to(gl.int64) * q_stride + (head * GROUP + lane % GROUP) * D
    known = (token < query_len) & (head >= 0)
    for part in gl.static_range(D // SLICE):
        at = q + place[:, None] + (channel + part * SLICE)[None, :]
        tile = q_slices.index(buffer * (D // SLICE) + part)
        async_copy.async_copy_global_to_shared(tile, at, mask=known[:, None])
    async_copy.commit_group()


@gluon.jit
def _wait_queries():
    async_copy.wait_group(0)
    fence_async_shared()
    meet()


# fmt: off
@gluon.jit
def _unit(
    turn, count, unit, q, out, sinks, parts, q_stride, scale, q_tiles, q_slices, k_tiles, v_tiles,
    v_slices, bars, units, unit_bars, WHO: gl.constexpr, KV_HEADS: gl.constexpr,
    GROUP: gl.constexpr, SOFT_CAP: gl.constexpr, WINDOW: gl.constexpr, DTYPE: gl.constexpr,
    N: gl.constexpr, D: gl.constexpr, STAGES: gl.constexpr, BUFFERS: gl.constexpr,
    SPLIT: gl.constexpr,
):
    # fmt: on
    """A warp group's M rows; returns the number of tiles so far, and the next unit."""
    S_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, N, 16])
    O_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, D, 16])
    P_LAYOUT: gl.constexpr = gl.DotOperandLayout(0, O_LAYOUT, 2)
    k_ready, v_ready, k_free, v_free = bars
    head, row, begin, query_len, context = unit[0], unit[1], unit[2], unit[3], unit[4]
    keys = keys_of(unit, M if SPLIT else 2 * M, GROUP, WINDOW, N, SPLIT)
    low, stop, first, shared, length = keys
    if BUFFERS == 1:
        meet()  # nobody multiplies by the last unit's
        _ask_queries(q, q_stride, q_slices, 0, unit, WHO, GROUP, D)
    q_tile = q_tiles.index(count % BUFFERS)
    _wait_queries()
    if WHO == "second":
        row += M
    mine = row + gl.arange(0, M, gl.SliceLayout(1, S_LAYOUT))
    position = context + mine // GROUP
    top = gl.full([M], float("-inf"), gl.float32, gl.SliceLayout(1, S_LAYOUT))
    total = gl.zeros([M], gl.float32, gl.SliceLayout(1, S_LAYOUT))
    if sinks is not None:
        top = gl.load(sinks + head * GROUP + mine % GROUP).to(gl.float32) * LOG2_E
        total += 1.0
        if SPLIT:  # it counts in one part only
            top = gl.where(unit[5] == 0, top, float("-inf"))
            total = gl.where(unit[5] == 0, total, 0.0)
    acc = gl.zeros([M, D], gl.float32, O_LAYOUT)

    stage, flip = turn % STAGES, turn // STAGES & 1
    turn += 1
    mbarrier.wait(k_ready.index(stage), flip)
    s = warpgroup_mma_wait(0, deps=[_ask_scores(q_tile, k_tiles, stage, N)])
    mbarrier.arrive(k_free.index(stage), count=1)
    p, top, total, _decay = _soften(s, top, total, position, low, first, stop, scale, SOFT_CAP,
                                   WINDOW, True, N)  # fmt: skip
    state = (gl.convert_layout(p.to(DTYPE), P_LAYOUT), top, total, acc)
    middle = low + N
    # fmt: off
    if not WINDOW:
        # Rows see the whole of a tile that ends before the first row's own place.
        middle = gl.maximum(shared // N * N, low + N)
        state, turn = _steps(state, turn, low + N, middle, keys, position, q_tile, k_tiles, v_tiles,
                             v_slices, bars, scale, WHO, SOFT_CAP, WINDOW, False, DTYPE, N, D,
                             STAGES)
    after = take(units, unit_bars, count + 1, SPLIT)
    if BUFFERS > 1:
        _ask_queries(q, q_stride, q_slices, (count + 1) % BUFFERS, after, WHO, GROUP, D)
    state, turn = _steps(state, turn, middle, stop, keys, position, q_tile, k_tiles, v_tiles,
                         v_slices, bars, scale, WHO, SOFT_CAP, WINDOW, True, DTYPE, N, D, STAGES)
    # fmt: on
    p, top, total, acc = state
    stage, flip = (turn - 1) % STAGES, (turn - 1) // STAGES & 1
    mbarrier.wait(v_ready.index(stage), flip)
    _blank_hidden(v_slices, stage, low + (stop - 1 - low) // N * N, first, length, N, D)
    acc = warpgroup_mma(p, v_tiles.index(stage), acc, is_async=True)
    acc = warpgroup_mma_wait(0, deps=[acc])
    mbarrier.arrive(v_free.index(stage), count=1)
    if SPLIT:
        if unit[6] == 1:
            write(acc, total, out, row, head, begin, query_len, KV_HEADS, GROUP, D)
        else:
            leave_part(acc, top, total, out, parts, unit, KV_HEADS, GROUP, D)
    else:
        write(acc, total, out, row, head, begin, query_len, KV_HEADS, GROUP, D)
    return turn, after


# fmt: off
@gluon.jit
def _consume(
    q, out, sinks, parts, q_stride, scale, q_tiles, q_slices, k_tiles, v_tiles, v_slices, bars,
    units, unit_bars, WHO: gl.constexpr, KV_HEADS: gl.constexpr, GROUP: gl.constexpr,
    SOFT_CAP: gl.constexpr, WINDOW: gl.constexpr, DTYPE: gl.constexpr, N: gl.constexpr,
    D: gl.constexpr, STAGES: gl.constexpr, BUFFERS: gl.constexpr, SPLIT: gl.constexpr,
):
    """A warp group: unit after unit."""
    if WHO == "second":
        _pass_turn("second")
    turn = 0
    count = 0
    unit = take(units, unit_bars, 0, SPLIT)
    if BUFFERS > 1:
        _ask_queries(q, q_stride, q_slices, 0, unit, WHO, GROUP, D)
    while unit[0] >= 0:
        turn, unit = _unit(turn, count, unit, q, out, sinks, parts, q_stride, scale, q_tiles,
                           q_slices, k_tiles, v_tiles, v_slices, bars, units, unit_bars, WHO,
                           KV_HEADS, GROUP, SOFT_CAP, WINDOW, DTYPE, N, D, STAGES, BUFFERS, SPLIT)
        count += 1
    async_copy.wait_group(0)
    if WHO == "first":
        _wait_for_turn("first")
    # fmt: on


@gluon.jit
def _bars(STAGES: gl.constexpr, COUNT: gl.constexpr):
    bars = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for stage in gl.static_range(STAGES):
        mbarrier.init(bars.index(stage), count=COUNT)
    return bars


@gluon.jit(
    do_not_specialize=["table_stride", "num_units"],
    do_not_specialize_on_alignment=["block_table"],
)
def hopper_attention(
    q, cache, out, block_table, items, counters, part_sums, part_values, sinks, scale, q_stride,
    table_stride, num_units, KV_HEADS: gl.constexpr, GROUP: gl.constexpr, PAGE: gl.constexpr,
    WINDOW: gl.constexpr, SOFT_CAP: gl.constexpr, N: gl.constexpr, D: gl.constexpr,
    BOX: gl.constexpr, STAGES: gl.constexpr, BUFFERS: gl.constexpr, SPLIT: gl.constexpr,
    PART_ROWS: gl.constexpr, EARLY: gl.constexpr,
):
    """Items as `allmetal_triton.jit.schedule` makes them: for tiles of 2 M rows in one part each,
    or with SPLIT for tiles of PART_ROWS rows, M at most.  Of each, KV_HEADS units, which programs
    draw in turn from `counters` [2], zero before and after.

    BUFFERS for queries: with two, the next unit's are on their way during this one.
    `cache` describes [2 blocks * PAGE, KV_HEADS * D] in boxes of [BOX, SLICE].
    """
    DTYPE: gl.constexpr = cache.dtype
    S: gl.constexpr = D // SLICE
    GROUPS: gl.constexpr = 1 if SPLIT else 2
    let_next_begin(EARLY)
    q_first = gl.allocate_shared_memory(DTYPE, [BUFFERS, M, D], cache.layout)
    PIECES: gl.constexpr = STAGES * S * N // BOX
    k_pieces = gl.allocate_shared_memory(DTYPE, [PIECES, BOX, SLICE], cache.layout)
    v_pieces = gl.allocate_shared_memory(DTYPE, [PIECES, BOX, SLICE], cache.layout)
    k_tiles = k_pieces._reinterpret(DTYPE, [STAGES, N, D], cache.layout)
    v_tiles = v_pieces._reinterpret(DTYPE, [STAGES, N, D], cache.layout)
    v_slices = v_pieces._reinterpret(DTYPE, [STAGES * S, N, SLICE], cache.layout)
    bars = (_bars(STAGES, 1), _bars(STAGES, 1), _bars(STAGES, GROUPS), _bars(STAGES, GROUPS))
    PLAIN: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    units = gl.allocate_shared_memory(gl.int32, [UNITS * UNIT_WORDS, 1], PLAIN)
    unit_bars = (_bars(UNITS, 1), _bars(UNITS, GROUPS))
    fence_async_shared()
    wait_for_last(EARLY)
    parts = (counters, part_sums, part_values, PART_ROWS)
    q_slices = q_first._reinterpret(DTYPE, [BUFFERS * S, M, SLICE], cache.layout)
    if SPLIT:
        gl.warp_specialize([
            (_consume, (q, out, sinks, parts, q_stride, scale, q_first, q_slices, k_tiles, v_tiles,
                        v_slices, bars, units, unit_bars, "all", KV_HEADS, GROUP, SOFT_CAP,
                        WINDOW, DTYPE, N, D, STAGES, BUFFERS, True)),
            (copy, (cache, block_table, table_stride, items, counters, num_units, k_pieces,
                    v_pieces, bars, units, unit_bars, KV_HEADS, GROUP, WINDOW, PAGE, BOX, N, D,
                    STAGES, PART_ROWS, True)),
        ], [1], [80])
    else:
        q_second = gl.allocate_shared_memory(DTYPE, [BUFFERS, M, D], cache.layout)
        more_slices = q_second._reinterpret(DTYPE, [BUFFERS * S, M, SLICE], cache.layout)
        gl.warp_specialize([
            (_consume, (q, out, sinks, parts, q_stride, scale, q_first, q_slices, k_tiles, v_tiles,
                        v_slices, bars, units, unit_bars, "first", KV_HEADS, GROUP, SOFT_CAP,
                        WINDOW, DTYPE, N, D, STAGES, BUFFERS, False)),
            (_consume, (q, out, sinks, parts, q_stride, scale, q_second, more_slices, k_tiles,
                        v_tiles, v_slices, bars, units, unit_bars, "second", KV_HEADS, GROUP,
                        SOFT_CAP, WINDOW, DTYPE, N, D, STAGES, BUFFERS, False)),
            (copy, (cache, block_table, table_stride, items, counters, num_units, k_pieces,
                    v_pieces, bars, units, unit_bars, KV_HEADS, GROUP, WINDOW, PAGE, BOX, N, D,
                    STAGES, 2 * M, False)),
        ], [4, 1], [232, 40])
    # fmt: on
