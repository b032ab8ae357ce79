"""Products of few tokens on Hopper: bound by reading the weights, so memory must never wait.

A program has a ring of tiles in shared memory; one warp asks the copy engine for them, four
multiply.  As many tiles of weights as the ring holds are asked for before the launch ahead has
ended, and the next launch may begin at once: one launch's memory traffic runs into the next one's.
Outputs are the rows of the matrix instruction, which wants 64 of them, and tokens its columns,
which may be 8.  Where there are fewer tiles of outputs than cores, channels are shared out among
programs, and the last of them to finish adds up what all have left in memory, in order.

Legend: T tokens, N outputs, C channels; a tile is BN outputs, or BT tokens, of BK channels.
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


@gluon.jit
def wait_for_last(EARLY: gl.constexpr):
    """What earlier launches have written may be read from here on."""
    if EARLY:
        gl.inline_asm_elementwise(
            "griddepcontrol.wait; // dummy $0", "=r", [], dtype=gl.int32, is_pure=False, pack=1
        )


@gluon.jit
def let_next_begin(EARLY: gl.constexpr):
    if EARLY:
        gl.inline_asm_elementwise(
            "griddepcontrol.launch_dependents; // dummy $0",
            "=r",
            [],
            dtype=gl.int32,
            is_pure=False,
            pack=1,
        )


# ---- one warp copies -----------------------------------------------------------------------


@gluon.jit
def _copy(weight, x, n, t, first, steps, w_tiles, x_tiles, ready, free, STAGES: gl.constexpr,
          EARLY: gl.constexpr):  # fmt: skip
    """Tiles of all steps into the ring, each when the product before it in its place is done."""
    BK: gl.constexpr = weight.block_type.shape[1]
    NBYTES: gl.constexpr = weight.block_type.nbytes + x.block_type.nbytes
    # Weights are nobody's output; tokens are.
    for turn in gl.static_range(STAGES):
        bar = ready.index(turn)
        mbarrier.expect(bar, NBYTES)
        at = (first + turn) * BK
        tma.async_copy_global_to_shared(weight, [n, at], bar, w_tiles.index(turn))
    let_next_begin(EARLY)
    wait_for_last(EARLY)
    for turn in gl.static_range(STAGES):
        at = (first + turn) * BK
        tma.async_copy_global_to_shared(x, [t, at], ready.index(turn), x_tiles.index(turn))
    for turn in range(STAGES, steps):
        stage = turn % STAGES
        bar = ready.index(stage)
        mbarrier.wait(free.index(stage), (turn // STAGES & 1) ^ 1)
        mbarrier.expect(bar, NBYTES)
        at = (first + turn) * BK
        tma.async_copy_global_to_shared(weight, [n, at], bar, w_tiles.index(stage))
        tma.async_copy_global_to_shared(x, [t, at], bar, x_tiles.index(stage))


# ---- the others multiply -------------------------------------------------------------------


@gluon.jit
def _multiply(steps, w_tiles, x_tiles, ready, free, BN: gl.constexpr, BT: gl.constexpr,
              STAGES: gl.constexpr, LAYOUT: gl.constexpr):  # fmt: skip
    """[BN, BT] float32: the sum over all steps, with one product under way while its tiles are
    awaited."""
    acc = gl.zeros([BN, BT], gl.float32, LAYOUT)
    for turn in range(steps):
        stage = turn % STAGES
        mbarrier.wait(ready.index(stage), turn // STAGES & 1)
        x = x_tiles.index(stage).permute((1, 0))
        acc = warpgroup_mma(w_tiles.index(stage), x, acc, is_async=True)
        acc = warpgroup_mma_wait(1, deps=[acc])
        before = gl.maximum(turn - 1, 0) % STAGES
        mbarrier.arrive(free.index(before), count=1, pred=turn > 0)
    return warpgroup_mma_wait(0, deps=[acc])


@gluon.jit
def _add_parts(mine, parts, tile, part, place, SPLITS: gl.constexpr, SIZE: gl.constexpr):
    """The sum of a tile's parts, always in the same order; one of them is at hand."""
    base = parts + tile.to(gl.int64) * (SPLITS * SIZE)
    total = gl.zeros_like(mine)
    for number in gl.static_range(SPLITS):
        there = gl.load(base + number * SIZE + place, mask=number != part, other=0.0,
                        cache_modifier=".cg")  # fmt: skip
        total += gl.where(number == part, mine, there)
    return total


@gluon.jit
def _write(acc, n, t, bias, scale, x_scale, y, num_tokens, num_outputs, w_tiles,
           BN: gl.constexpr, BT: gl.constexpr, num_warps: gl.constexpr):  # fmt: skip
    """acc [BN, BT] to y [T, N], outputs side by side; by way of the ring, which is empty."""
    WIDE: gl.constexpr = gl.BlockedLayout([8, 1], [BN // 8, 256 // BN], [1, num_warps], [0, 1])
    PLAIN: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0, 1])
    there = w_tiles._reinterpret(gl.float32, [BN, BT], PLAIN)
    meet()  # all warps have done the last product
    there.store(acc)
    meet()
    acc = there.load(WIDE)
    n += gl.arange(0, BN, gl.SliceLayout(1, WIDE))
    t += gl.arange(0, BT, gl.SliceLayout(0, WIDE))
    inside = n < num_outputs
    if scale is not None:
        acc *= gl.load(scale + n, mask=inside, other=0.0)[:, None]
        acc *= gl.load(x_scale + t, mask=t < num_tokens, other=0.0)[None, :]
    if bias is not None:
        acc += gl.load(bias + n, mask=inside, other=0.0).to(gl.float32)[:, None]
    place = t.to(gl.int64)[None, :] * num_outputs + n[:, None]
    gl.store(y + place, acc.to(y.dtype.element_ty), inside[:, None] & (t < num_tokens)[None, :])


# fmt: off
@gluon.jit
def _finish(
    n, t, tile, part, steps, bias, scale, x_scale, y, parts, counters, num_tokens, num_outputs,
    w_tiles, x_tiles, ready, free, SPLITS: gl.constexpr, STAGES: gl.constexpr,
    num_warps: gl.constexpr,
):
    """Multiply, and write the tile if it is whole, or else by the last who has a part of it."""
    # fmt: on
    BN: gl.constexpr = w_tiles.shape[1]
    BT: gl.constexpr = x_tiles.shape[1]
    DEPTH: gl.constexpr = 256 // w_tiles.dtype.primitive_bitwidth
    LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [num_warps, 1], [16, BT, DEPTH])
    acc = _multiply(steps, w_tiles, x_tiles, ready, free, BN, BT, STAGES, LAYOUT)
    if SPLITS == 1:
        _write(acc, n, t, bias, scale, x_scale, y, num_tokens, num_outputs, w_tiles, BN, BT,
               num_warps)
    else:
        row = gl.arange(0, BN, gl.SliceLayout(1, LAYOUT))
        column = gl.arange(0, BT, gl.SliceLayout(0, LAYOUT))
        place = row[:, None] * BT + column[None, :]
        mine = (tile * SPLITS + part).to(gl.int64) * (BN * BT)
        gl.store(parts + mine + place, acc)
        meet()  # all threads' stores come before the count
        if gl.atomic_add(counters + tile, 1, sem="acq_rel") == SPLITS - 1:
            meet()
            acc = _add_parts(acc, parts, tile, part, place, SPLITS, BN * BT)
            _write(acc, n, t, bias, scale, x_scale, y, num_tokens, num_outputs, w_tiles, BN, BT,
               num_warps)
            gl.store(counters + tile, 0)


# fmt: off
@gluon.jit(do_not_specialize=["num_tokens"])
def hopper_linear(
    weight, x, bias, scale, x_scale, y, parts, counters, num_tokens, num_outputs, all_steps,
    SPLITS: gl.constexpr, STAGES: gl.constexpr, EARLY: gl.constexpr, num_warps: gl.constexpr,
):
    """y [T, N] over `all_steps` of BK channels, of which each of SPLITS programs has at least
    STAGES.

    `weight` describes [N, C] in boxes of [BN, BK], `x` [T, C] in boxes of [BT, BK].  `scale` [N]
    and `x_scale` [T], float32, are factors of rows if there are any.  `parts` [tiles, SPLITS, BN,
    BT] float32 takes what programs have of a sum; `counters` [tiles] are zero before and after.
    """
    # fmt: on
    BN: gl.constexpr = weight.block_type.shape[0]
    BK: gl.constexpr = weight.block_type.shape[1]
    BT: gl.constexpr = x.block_type.shape[0]
    tile, part = gl.program_id(0) // SPLITS, gl.program_id(0) % SPLITS
    # Programs that read the same weights are neighbours.
    tiles_of_tokens = (num_tokens + BT - 1) // BT
    n, t = tile // tiles_of_tokens * BN, tile % tiles_of_tokens * BT
    first = part * all_steps // SPLITS
    steps = (part + 1) * all_steps // SPLITS - first

    w_tiles = gl.allocate_shared_memory(weight.dtype, [STAGES, BN, BK], weight.layout)
    x_tiles = gl.allocate_shared_memory(x.dtype, [STAGES, BT, BK], x.layout)
    ready = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for stage in gl.static_range(STAGES):
        mbarrier.init(ready.index(stage), count=1)
        mbarrier.init(free.index(stage), count=1)
    fence_async_shared()
    # fmt: off
    gl.warp_specialize([
        (_finish, (n, t, tile, part, steps, bias, scale, x_scale, y, parts, counters, num_tokens,
                   num_outputs, w_tiles, x_tiles, ready, free, SPLITS, STAGES, num_warps)),
        (_copy, (weight, x, n, t, first, steps, w_tiles, x_tiles, ready, free, STAGES, EARLY)),
    ], [1], [48])
    # fmt: on
