"""Products with few tokens: bound by reading the weights, so that each is read once and on time.

Legend: T tokens, C channels in, N outputs; a tile is BN outputs of BC channels.
"""

from __future__ import annotations

import triton
import triton.language as tl

from allmetal_triton.jit.early import fetch_early, let_next_begin, wait_for_last


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
    """y [T, N] for T of 1 to 4, by the vector units: BN rows of the weights a program."""
    # fmt: on
    n = tl.program_id(0) * BN + tl.arange(0, BN)
    channel = tl.arange(0, BC)
    rows = weight + n.to(tl.int64)[:, None] * C + channel[None, :]
    known = (n < N)[:, None]
    let_next_begin(EARLY)
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
    for t in tl.static_range(T):
        _store(y + t * N, tl.sum(sums[t], axis=1), bias, n, N)


@triton.jit
def _times(w, x, channel, C: tl.constexpr):
    """w [BN, BC] times a token's channels, [BN, BC] float32."""
    values = tl.load(x + channel, mask=channel < C, other=0.0).to(tl.float32)
    return w.to(tl.float32) * values[None, :]


# fmt: off
@triton.jit
def multiply_tiles(
    x, weight, bias, y, parts, counters, num_tokens, x_stride,
    C: tl.constexpr, N: tl.constexpr, BT: tl.constexpr, BN: tl.constexpr, BC: tl.constexpr,
    PARTS: tl.constexpr, AHEAD: tl.constexpr, PRECISION: tl.constexpr, EARLY: tl.constexpr,
):
    """y [num_tokens, N] for up to BT tokens, by the matrix units: tiles of the weights stream by
    and the tokens stay.  With PARTS a tile's channels are shared out, and the last program adds up.
    """
    tile, part = tl.program_id(0) // PARTS, tl.program_id(0) % PARTS
    n, t = tile * BN + tl.arange(0, BN), tl.arange(0, BT)
    known, real = (n < N)[:, None], (t < num_tokens)[:, None]
    share: tl.constexpr = triton.cdiv(triton.cdiv(C, BC), PARTS) * BC
    rows = weight + n.to(tl.int64)[:, None] * C
    tokens = x + t[:, None] * x_stride
    let_next_begin(EARLY)
    line = part * share + tl.arange(0, AHEAD // 64) * 64
    fetch_early(rows + tl.minimum(line, C - 1)[None, :], EARLY)
    wait_for_last(EARLY)
    acc = tl.zeros([BN, BT], dtype=tl.float32)
    for at in range(part * share, min(C, part * share + share), BC):
        channel = at + tl.arange(0, BC)
        inside = (channel < C)[None, :]
        w = tl.load(rows + channel[None, :], mask=known & inside, other=0.0,
                    eviction_policy="evict_first")
        values = tl.load(tokens + channel[None, :], mask=real & inside, other=0.0)
        acc = tl.dot(w, tl.trans(values), acc, input_precision=PRECISION)
    if PARTS == 1:
        _store_tile(y, acc, bias, n, t, num_tokens, N)
    else:
        place = (tile * PARTS + part) * BN * BT
        inner = tl.arange(0, BN)[:, None] * BT + t[None, :]
        tl.store(parts + place + inner, acc)
        tl.debug_barrier()  # all threads' stores come before the count
        if tl.atomic_add(counters + tile, 1, sem="acq_rel") == PARTS - 1:
            tl.debug_barrier()
            total = tl.zeros([BN, BT], dtype=tl.float32)
            for other in tl.static_range(PARTS):
                place = (tile * PARTS + other) * BN * BT
                total += tl.load(parts + place + inner, cache_modifier=".cg")
            _store_tile(y, total, bias, n, t, num_tokens, N)
            tl.store(counters + tile, 0)  # ready for the next time
    # fmt: on


@triton.jit
def _store_tile(y, acc, bias, n, t, num_tokens, N: tl.constexpr):
    """acc [BN, BT] to y's rows of real tokens."""
    if bias is not None:
        acc += tl.load(bias + n, mask=n < N, other=0.0).to(tl.float32)[:, None]
    place = t[:, None] * N + n[None, :]
    inside = (t < num_tokens)[:, None] & (n < N)[None, :]
    tl.store(y + place, tl.trans(acc).to(y.dtype.element_ty), mask=inside)
