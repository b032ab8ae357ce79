"""Products with integer weights, which become the tokens' type on their way to the matrix unit.

Few tokens are bound by reading the weights, a byte or half a byte each; many by the matrix unit.
Where tokens are integers too, so are products, and sums of one tile at a time are exact.

Legend: T tokens, C channels in, N outputs; a tile is BT tokens, or BN outputs, of BC channels.
"""

from __future__ import annotations

import triton
import triton.language as tl

from allmetal_triton.jit.early import let_next_begin, wait_for_last


# fmt: off
@triton.jit
def _add(
    acc, w, rows, at, known, scales, inside_n, C: tl.constexpr, GROUP: tl.constexpr,
    BC: tl.constexpr,
):
    """acc [BT, BN] float32 + the tokens' channels `at` and on times w [BC, BN]."""
    # fmt: on
    inside = at + tl.arange(0, BC) < C
    a = tl.load(rows + at, mask=known & inside[None, :], other=0)
    if GROUP == 0 and a.dtype != tl.int8:
        return tl.dot(a, w.to(a.dtype), acc, input_precision="ieee")
    if a.dtype == tl.int8:
        product = tl.dot(a, w).to(tl.float32)
    else:
        product = tl.dot(a, w.to(a.dtype), input_precision="ieee")
    if GROUP:
        exists = inside_n & (at < C)
        product *= tl.load(scales + at // GROUP, mask=exists, other=0.0)[None, :]
    return acc + product


# fmt: off
@triton.jit(do_not_specialize=["num_tokens"])
def multiply_ints(
    x, weight, scale, x_scale, bias, y, x_stride, num_tokens,
    C: tl.constexpr, N: tl.constexpr, BITS: tl.constexpr, GROUP: tl.constexpr,
    BT: tl.constexpr, BN: tl.constexpr, BC: tl.constexpr, EARLY: tl.constexpr,
):
    """y [T, N] = x [T, C] times the weight, plus bias.

    `weight` [N, C] int8, or with 4 BITS [N, W] where each BC bytes hold 2 BC channels: the first
    half of them in the low bits.  `scale` [N, C / GROUP] float32, or [N] with GROUP 0.  With
    `x_scale` [T] float32 x is int8.
    """
    # fmt: on
    SPAN: tl.constexpr = BC * 8 // BITS
    WIDTH: tl.constexpr = C if BITS == 8 else (C + SPAN - 1) // SPAN * BC
    GROUPS: tl.constexpr = C // GROUP if GROUP else 1
    let_next_begin(EARLY)
    # Programs that read the same weights are neighbours.
    tiles = tl.cdiv(num_tokens, BT)
    t = tl.program_id(0) % tiles * BT + tl.arange(0, BT)
    n = tl.program_id(0) // tiles * BN + tl.arange(0, BN)
    channel = tl.arange(0, BC)
    rows = x + t.to(tl.int64)[:, None] * x_stride + channel[None, :]
    columns = weight + n.to(tl.int64)[None, :] * WIDTH + channel[:, None]
    scales = scale + n.to(tl.int64) * GROUPS
    known, inside_n = (t < num_tokens)[:, None], n < N
    acc = tl.zeros([BT, BN], dtype=tl.float32)
    wait_for_last(EARLY)
    for at in range(0, C, SPAN):
        if BITS == 8:
            there = inside_n[None, :] & (at + channel < C)[:, None]
            w = tl.load(columns + at, mask=there, other=0)
            acc = _add(acc, w, rows, at, known, scales, inside_n, C, GROUP, BC)
        else:
            both = tl.load(columns + at // 2, mask=inside_n[None, :], other=0).to(tl.int32)
            low, high = ((both << 28) >> 28).to(tl.int8), (both >> 4).to(tl.int8)
            acc = _add(acc, low, rows, at, known, scales, inside_n, C, GROUP, BC)
            acc = _add(acc, high, rows, at + BC, known, scales, inside_n, C, GROUP, BC)
    if GROUP == 0:
        acc *= tl.load(scales, mask=inside_n, other=0.0)[None, :]
    if x_scale is not None:
        acc *= tl.load(x_scale + t, mask=t < num_tokens, other=0.0)[:, None]
    if bias is not None:
        acc += tl.load(bias + n, mask=inside_n, other=0.0).to(tl.float32)[None, :]
    place = y + t.to(tl.int64)[:, None] * N + n[None, :]
    tl.store(place, acc.to(y.dtype.element_ty), mask=known & inside_n[None, :])
