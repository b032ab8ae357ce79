"""What the warp that copies does for attention on Hopper: draw units, and fetch their keys and
values page by page, so far ahead as there is room.

The head is cut into slices of 64 channels, the width of the copy engine's swizzle: a tile in
shared memory is its slices one behind the other, and a slice the pieces of its pages.

Legend: M rows of a warp group, N keys of a tile, D head dim.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma

SLICE = gl.constexpr(64)
M = gl.constexpr(64)
UNITS = gl.constexpr(2)
"""Units that are known ahead."""
UNIT_WORDS = gl.constexpr(8)


# ---- units ---------------------------------------------------------------------------------
# A unit is (head or -1 behind the last, first row, first token, new tokens, tokens before), and
# with SPLIT also (part of its keys, number of parts, slot of its item).


@gluon.jit
def _draw(items, counters, num_units, KV_HEADS: gl.constexpr, ROWS: gl.constexpr,
          SPLIT: gl.constexpr):  # fmt: skip
    """The next unit, and its sequence."""
    number = gl.atomic_add(counters, 1, sem="relaxed")
    slot = gl.minimum(number, num_units - 1) // KV_HEADS
    item = items + slot * 8
    seq, tile, begin = gl.load(item), gl.load(item + 1), gl.load(item + 4)
    query_len, context = gl.load(item + 5), gl.load(item + 6)
    head = gl.where((number < num_units) & (seq >= 0), number % KV_HEADS, -1)
    unit = (head, tile * ROWS, begin, query_len, context)
    if SPLIT:
        unit += (gl.load(item + 2), gl.load(item + 3), slot)
    return unit, seq


@gluon.jit
def keys_of(unit, ROWS: gl.constexpr, GROUP: gl.constexpr, WINDOW: gl.constexpr, N: gl.constexpr,
            SPLIT: gl.constexpr):  # fmt: skip
    """Of a unit: (first tile, end of the tiles, first key, keys that all rows see, all keys)."""
    row, query_len, context = unit[1], unit[3], unit[4]
    shared = context + row // GROUP + 1
    stop = context + gl.minimum(query_len, (row + ROWS - 1) // GROUP + 1)
    first = gl.maximum(shared - WINDOW, 0) if WINDOW else 0
    low = first // N * N
    if SPLIT:
        share = gl.cdiv(gl.cdiv(stop - low, N), unit[6]) * N
        low += unit[5] * share
        # A part that has no key has a tile without one.
        stop = gl.maximum(gl.minimum(stop, low + share), low + 1)
        shared = gl.minimum(shared, stop)
    return low, stop, first, shared, context + query_len


@gluon.jit
def _give(unit, units, unit_bars, count, SPLIT: gl.constexpr):
    ready, free = unit_bars
    stage, flip = count % UNITS, count // UNITS & 1
    mbarrier.wait(free.index(stage), flip ^ 1)
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [1], [0])
    for word in gl.static_range(UNIT_WORDS if SPLIT else 5):
        value = gl.full([1], unit[word], gl.int32, layout)
        units.index(stage * UNIT_WORDS + word).store(value)
    mbarrier.arrive(ready.index(stage), count=1)


@gluon.jit
def take(units, unit_bars, count, SPLIT: gl.constexpr):
    ready, free = unit_bars
    stage, flip = count % UNITS, count // UNITS & 1
    mbarrier.wait(ready.index(stage), flip)
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    unit = ()
    for word in gl.static_range(UNIT_WORDS if SPLIT else 5):
        unit += (gl.max(units.index(stage * UNIT_WORDS + word).load(layout), axis=0),)
    mbarrier.arrive(free.index(stage), count=1)
    return unit


# ---- copies --------------------------------------------------------------------------------


@gluon.jit
def _pages(table, at, length, PAGE: gl.constexpr, BOX: gl.constexpr, N: gl.constexpr):
    """The first row, in a cache of rows of tokens, of each piece of the tile at `at`."""
    rows = ()
    for piece in gl.static_range(N // BOX):
        key = at + piece * BOX
        page = gl.load(table + key // PAGE, mask=key < length, other=0)
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


# fmt: off
@gluon.jit
def copy(
    cache, block_table, table_stride, items, counters, num_units, k_pieces, v_pieces, bars, units,
    unit_bars, KV_HEADS: gl.constexpr, GROUP: gl.constexpr, WINDOW: gl.constexpr,
    PAGE: gl.constexpr, BOX: gl.constexpr, N: gl.constexpr, D: gl.constexpr,
    STAGES: gl.constexpr, ROWS: gl.constexpr, SPLIT: gl.constexpr,
):
    # fmt: on
    """One warp: draws units, and copies keys a tile ahead of values, since they are needed
    first; those of the next unit ahead of this one's last values."""
    k_ready, v_ready, k_free, v_free = bars
    unit, seq = _draw(items, counters, num_units, KV_HEADS, ROWS, SPLIT)
    _give(unit, units, unit_bars, 0, SPLIT)
    low, stop, _, _, length = keys_of(unit, ROWS, GROUP, WINDOW, N, SPLIT)
    rows = _pages(block_table + seq.to(gl.int64) * table_stride, low, length, PAGE, BOX, N)
    if unit[0] >= 0:
        _copy_tile(cache, rows, 0, unit[0] * D, k_pieces, 0, k_ready, BOX, N, D)
    count = 0
    turn = 0
    while unit[0] >= 0:
        after, after_seq = _draw(items, counters, num_units, KV_HEADS, ROWS, SPLIT)
        count += 1
        _give(after, units, unit_bars, count, SPLIT)
        after_low, after_stop, _, _, after_length = keys_of(
            after, ROWS, GROUP, WINDOW, N, SPLIT
        )
        for at in range(low, stop, N):
            stage, flip = turn % STAGES, turn // STAGES & 1
            turn += 1
            more = at + N < stop
            owner = gl.where(more, seq, after_seq).to(gl.int64)
            head = gl.where(more, unit[0], after[0])
            following = _pages(block_table + owner * table_stride,
                               gl.where(more, at + N, after_low),
                               gl.where(more, length, after_length), PAGE, BOX, N)  # fmt: skip
            if head >= 0:
                place = turn % STAGES
                mbarrier.wait(k_free.index(place), (turn // STAGES & 1) ^ 1)
                _copy_tile(cache, following, 0, head * D, k_pieces, place, k_ready, BOX, N, D)
            mbarrier.wait(v_free.index(stage), flip ^ 1)
            _copy_tile(cache, rows, PAGE, unit[0] * D, v_pieces, stage, v_ready, BOX, N, D)
            rows = following
        unit, seq = after, after_seq
        low, stop, length = after_low, after_stop, after_length
    # Whoever is last leaves the counters as they were.
    if gl.atomic_add(counters + 1, 1, sem="acq_rel") == gl.num_programs(0) - 1:
        gl.store(counters, 0)
        gl.store(counters + 1, 0)
