"""The end of a unit of attention on Hopper: its result, or its part of one.

Legend: M rows of a warp group, ROWS of them that can be real, D head dim.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from allmetal_cuda.jit.hopper_copies import M
from allmetal_cuda.jit.versions import meet


@gluon.jit
def write(acc, total, out, row, head, begin, query_len, KV_HEADS: gl.constexpr,
           GROUP: gl.constexpr, D: gl.constexpr):  # fmt: skip
    WIDE: gl.constexpr = gl.BlockedLayout([1, 8], [256 // D, D // 8], [4, 1], [1, 0])
    O_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, D, 16])
    total = gl.convert_layout(total, gl.SliceLayout(1, O_LAYOUT))
    share = 1.0 / gl.where(total > 0, total, 1.0)
    lane = row + gl.arange(0, M, gl.SliceLayout(1, WIDE))
    token = lane // GROUP
    place = ((begin + token).to(gl.int64) * KV_HEADS + head) * GROUP + lane % GROUP
    channel = gl.arange(0, D, gl.SliceLayout(0, WIDE))
    values = gl.convert_layout((acc * share[:, None]).to(out.dtype.element_ty), WIDE)
    gl.store(out + place[:, None] * D + channel[None, :], values, (token < query_len)[:, None])


@gluon.jit
def leave_part(acc, top, total, out, parts, unit, KV_HEADS: gl.constexpr, GROUP: gl.constexpr,
                D: gl.constexpr):  # fmt: skip
    """Leave a part's sums where `allmetal_triton.jit.combine` would; the last of its siblings to
    arrive adds all of them up, always in the same order."""
    O_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, D, 16])
    R_LAYOUT: gl.constexpr = gl.SliceLayout(1, O_LAYOUT)
    counters, part_sums, part_values, ROWS = parts
    head, _, begin, query_len, _, part, num_parts, slot = unit
    row = gl.arange(0, M, R_LAYOUT)
    channel = gl.arange(0, D, gl.SliceLayout(0, O_LAYOUT))
    real = row < ROWS
    whole = real[:, None] & (channel < D)[None, :]
    values = part_values + row[:, None] * D + channel[None, :]
    mine = (slot * KV_HEADS + head).to(gl.int64) * ROWS
    gl.store(part_sums + mine * 2 + row, gl.convert_layout(top, R_LAYOUT), mask=real)
    gl.store(part_sums + mine * 2 + ROWS + row, gl.convert_layout(total, R_LAYOUT),
             mask=real)  # fmt: skip
    gl.store(values + mine * D, acc, mask=whole)
    # The first slot's counters are those of units, and the last part is never in it.
    counter = counters + (slot - part + num_parts - 1) * KV_HEADS + head
    meet()  # all threads' stores come before the count
    if gl.atomic_add(counter, 1, sem="acq_rel") == num_parts - 1:
        meet()
        best = gl.full([M], float("-inf"), gl.float32, R_LAYOUT)
        weight = gl.zeros([M], gl.float32, R_LAYOUT)
        added = gl.zeros([M, D], gl.float32, O_LAYOUT)
        for number in range(num_parts):
            at = ((slot - part + number) * KV_HEADS + head).to(gl.int64) * ROWS
            its_top = gl.load(part_sums + at * 2 + row, mask=real, other=float("-inf"),
                              cache_modifier=".cg")  # fmt: skip
            its_total = gl.load(part_sums + at * 2 + ROWS + row, mask=real, other=0.0,
                                cache_modifier=".cg")  # fmt: skip
            its = gl.load(values + at * D, mask=whole, other=0.0, cache_modifier=".cg")
            new = gl.maximum(best, its_top)
            base = gl.where(new == float("-inf"), 0.0, new)
            decay, share = gl.exp2(best - base), gl.exp2(its_top - base)
            best = new
            weight = weight * decay + its_total * share
            added = added * decay[:, None] + its * share[:, None]
        write(added, weight, out, 0, head, begin, query_len, KV_HEADS, GROUP, D)
        gl.store(counter, 0)
