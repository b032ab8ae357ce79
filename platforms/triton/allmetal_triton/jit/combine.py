"""The end of an attention item: its result, or its part of one.

Legend: M rows of an item, ROWS of them that can be real, D head dim; R rows of S parts are added
up at a time.
"""

from __future__ import annotations

import triton
import triton.language as tl


# fmt: off
@triton.jit
def finish(
    state, out, slot, head, tile, part, num_parts, begin, query_len, counters, part_sums,
    part_values, KV_HEADS: tl.constexpr, GROUP: tl.constexpr, DIM: tl.constexpr, M: tl.constexpr,
    D: tl.constexpr, ROWS: tl.constexpr, AT_ONCE: tl.constexpr, PARTS: tl.constexpr,
):
    """Write the rows of a whole item.  A part leaves its sums, and the last of its siblings to
    arrive adds all of them up."""
    # fmt: on
    top, total, acc = state
    row = tl.arange(0, M)
    if num_parts == 1:
        _write(acc, total, out, head, tile * M + row, begin, query_len, KV_HEADS, GROUP, DIM, D)
    else:
        channel = tl.arange(0, D)
        real = row < ROWS
        place = (slot * KV_HEADS + head).to(tl.int64) * ROWS
        tl.store(part_sums + place * 2 + row, top, mask=real)
        tl.store(part_sums + place * 2 + ROWS + row, total, mask=real)
        values = part_values + (place + row)[:, None] * D + channel[None, :]
        tl.store(values, acc, mask=real[:, None] & (channel < DIM)[None, :])
        counter = counters + (slot - part) * KV_HEADS + head
        tl.debug_barrier()  # all threads' stores come before the count
        if tl.atomic_add(counter, 1, sem="acq_rel") == num_parts - 1:
            tl.debug_barrier()
            for at in range(0, ROWS, AT_ONCE):
                _add_parts(out, slot - part, head, at, num_parts, begin, query_len, part_sums,
                           part_values, tile * M, KV_HEADS, GROUP, DIM, D, ROWS, AT_ONCE,
                           PARTS)  # fmt: skip
            tl.store(counter, 0)  # ready for the next layer


# fmt: off
@triton.jit
def _add_parts(
    out, slot, head, row, num_parts, begin, query_len, part_sums, part_values, first_row,
    KV_HEADS: tl.constexpr, GROUP: tl.constexpr, DIM: tl.constexpr, D: tl.constexpr,
    ROWS: tl.constexpr, AT_ONCE: tl.constexpr, PARTS: tl.constexpr,
):
    """The rows `row` and on of the parts in `slot` and on, AT_ONCE rows of PARTS parts."""
    # fmt: on
    channel = tl.arange(0, D)
    lane = row + tl.arange(0, AT_ONCE)
    top = tl.full([AT_ONCE], float("-inf"), dtype=tl.float32)
    total = tl.zeros([AT_ONCE], dtype=tl.float32)
    acc = tl.zeros([AT_ONCE, D], dtype=tl.float32)
    for at in range(0, num_parts, PARTS):
        part = at + tl.arange(0, PARTS)
        exists = part < num_parts
        place = ((slot + part) * KV_HEADS + head).to(tl.int64) * ROWS
        sums = part_sums + place[:, None] * 2 + lane[None, :]
        tops = tl.load(sums, mask=exists[:, None], other=float("-inf"), cache_modifier=".cg")
        totals = tl.load(sums + ROWS, mask=exists[:, None], other=0.0, cache_modifier=".cg")
        values = part_values + (place[:, None] + lane[None, :])[:, :, None] * D + channel
        known = exists[:, None, None] & (channel < DIM)[None, None, :]
        parts_SRD = tl.load(values, mask=known, other=0.0, cache_modifier=".cg")
        new_top = tl.maximum(top, tl.max(tops, axis=0))
        base = tl.where(new_top == float("-inf"), 0.0, new_top)
        weight = tl.exp2(tops - base[None, :])
        decay = tl.exp2(top - base)
        top = new_top
        total = total * decay + tl.sum(totals * weight, axis=0)
        acc = acc * decay[:, None] + tl.sum(parts_SRD * weight[:, :, None], axis=0)
    _write(acc, total, out, head, first_row + lane, begin, query_len, KV_HEADS, GROUP, DIM, D)


@triton.jit
def _write(
    acc, total, out, head, row, begin, query_len,
    KV_HEADS: tl.constexpr, GROUP: tl.constexpr, DIM: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    """acc [R, D] over total [R] to the output's rows, those of real tokens."""
    token = row // GROUP
    channel = tl.arange(0, D)
    at = ((begin + token).to(tl.int64) * KV_HEADS + head) * GROUP + row % GROUP
    inside = (token < query_len)[:, None] & (channel < DIM)[None, :]
    values = acc / tl.where(total > 0, total, 1.0)[:, None]
    tl.store(out + at[:, None] * DIM + channel[None, :], values.to(out.dtype.element_ty), inside)
