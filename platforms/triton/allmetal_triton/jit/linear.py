"""Products with few tokens: bound by reading the weights, so each is read once and on time.

Legend: T tokens, C channels in, N outputs; a tile is BN outputs of BC channels.
"""

from __future__ import annotations

import triton
import triton.language as tl

from allmetal_triton.jit.early import let_next_begin, wait_for_last


@triton.jit
def _store(y, values, bias, n, N: tl.constexpr):
    """values [BN] float32 to one row of y."""
    inside = n < N
    if bias is not None:
        values += tl.load(bias + n, mask=inside, other=0.0).to(tl.float32)
    tl.store(y + n, values.to(y.dtype.element_ty), mask=inside)


# fmt: off
@triton.jit
def multiply_rows(
    x, weight, bias, y, x_stride,
    T: tl.constexpr, C: tl.constexpr, N: tl.constexpr, BN: tl.constexpr, BC: tl.constexpr,
    EARLY: tl.constexpr,
):
    """y [T, N] for few T, by the vector units: BN rows of the weights a program."""
    # fmt: on
    n = tl.program_id(0) * BN + tl.arange(0, BN)
    channel = tl.arange(0, BC)
    rows = weight + n.to(tl.int64)[:, None] * C + channel[None, :]
    known = (n < N)[:, None]
    first = tl.load(rows, mask=known & (channel < C)[None, :], other=0.0)
    wait_for_last(EARLY)
    sums = ()
    for t in tl.static_range(T):
        sums += (_times(first, x + t * x_stride, channel, C),)
    for at in range(BC, C, BC):
        inside = at + channel < C
        w = tl.load(rows + at, mask=known & inside[None, :], other=0.0)
        more = ()
        for t in tl.static_range(T):
            product = _times(w, x + t * x_stride, at + channel, C)
            more += (sums[t] + product,)
        sums = more
    let_next_begin(EARLY)
    for t in tl.static_range(T):
        _store(y + t * N, tl.sum(sums[t], axis=1), bias, n, N)


@triton.jit
def _times(w, x, channel, C: tl.constexpr):
    """w [BN, BC] times a token's channels, [BN, BC] float32."""
    values = tl.load(x + channel, mask=channel < C, other=0.0).to(tl.float32)
    return w.to(tl.float32) * values[None, :]
