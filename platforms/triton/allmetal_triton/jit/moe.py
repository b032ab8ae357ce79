"""Products of tokens gathered by expert, and their sum.

Few tokens are bound by reading the chosen experts' weights, once each; many by the matrix unit.

Legend: T tokens, C channels, N intermediate channels, E experts, K experts a token, P = T K pairs;
a tile is BM pairs of one expert.
"""

from __future__ import annotations

import triton
import triton.language as tl

from allmetal_triton.jit.early import let_next_begin, wait_for_last
from allmetal_triton.jit.gated_activation import activate


# fmt: off
@triton.jit
def experts_in(
    x, weight, pairs, experts, h, x_stride,
    C: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BC: tl.constexpr,
    ACTIVATION: tl.constexpr, EARLY: tl.constexpr,
):
    """x [T, C], weight [E, 2 N, C], gate above up -> h [tiles * BM, N] = act(gate) * up, the rows
    in the order of `pairs`."""
    # fmt: on
    tile, n = tl.program_id(0) // tl.cdiv(N, BN), tl.program_id(0) % tl.cdiv(N, BN)
    let_next_begin(EARLY)
    wait_for_last(EARLY)
    expert = tl.load(experts + tile).to(tl.int64)
    if expert >= 0:
        row = tile * BM + tl.arange(0, BM)
        pair = tl.load(pairs + row)
        column = n * BN + tl.arange(0, BN)
        channel = tl.arange(0, BC)
        rows = x + (pair // K).to(tl.int64)[:, None] * x_stride + channel[None, :]
        gates = weight + (expert * 2 * N + column)[None, :] * C + channel[:, None]
        there, wanted = (pair >= 0)[:, None], (column < N)[None, :]
        gate = tl.zeros([BM, BN], dtype=tl.float32)
        up = tl.zeros([BM, BN], dtype=tl.float32)
        for at in range(0, C, BC):
            inside = at + channel < C
            a = tl.load(rows + at, mask=there & inside[None, :], other=0.0)
            known = wanted & inside[:, None]
            g = tl.load(gates + at, mask=known, other=0.0)
            u = tl.load(gates + at + N * C, mask=known, other=0.0)
            gate = tl.dot(a, g, gate, input_precision="ieee")
            up = tl.dot(a, u, up, input_precision="ieee")
        values = activate(gate, ACTIVATION) * up
        to = h + row.to(tl.int64)[:, None] * N + column[None, :]
        tl.store(to, values.to(h.dtype.element_ty), mask=there & wanted)


# fmt: off
@triton.jit
def experts_out(
    h, weight, pairs, experts, shares, parts,
    C: tl.constexpr, N: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BC: tl.constexpr,
    EARLY: tl.constexpr,
):
    """h [tiles * BM, N], weight [E, C, N], shares [P] -> parts [P, C] = share * down(h)."""
    # fmt: on
    tile, n = tl.program_id(0) // tl.cdiv(C, BN), tl.program_id(0) % tl.cdiv(C, BN)
    let_next_begin(EARLY)
    wait_for_last(EARLY)
    expert = tl.load(experts + tile).to(tl.int64)
    if expert >= 0:
        row = tile * BM + tl.arange(0, BM)
        pair = tl.load(pairs + row)
        column = n * BN + tl.arange(0, BN)
        channel = tl.arange(0, BC)
        rows = h + row.to(tl.int64)[:, None] * N + channel[None, :]
        downs = weight + (expert * C + column)[None, :] * N + channel[:, None]
        there, wanted = (pair >= 0)[:, None], (column < C)[None, :]
        y = tl.zeros([BM, BN], dtype=tl.float32)
        for at in range(0, N, BC):
            inside = at + channel < N
            a = tl.load(rows + at, mask=there & inside[None, :], other=0.0)
            w = tl.load(downs + at, mask=wanted & inside[:, None], other=0.0)
            y = tl.dot(a, w, y, input_precision="ieee")
        y *= tl.load(shares + pair, mask=pair >= 0, other=0.0)[:, None]
        to = parts + pair.to(tl.int64)[:, None] * C + column[None, :]
        tl.store(to, y.to(parts.dtype.element_ty), mask=there & wanted)


@triton.jit
def sum_experts(parts, y, C: tl.constexpr, K: tl.constexpr, BLOCK: tl.constexpr,
                EARLY: tl.constexpr):  # fmt: skip
    """parts [T * K, C] -> y [T, C], in the order of the experts' rank."""
    token = tl.program_id(0).to(tl.int64)
    channel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = channel < C
    let_next_begin(EARLY)
    wait_for_last(EARLY)
    total = tl.zeros([BLOCK], dtype=tl.float32)
    for k in range(K):
        total += tl.load(parts + (token * K + k) * C + channel, mask=inside, other=0.0)
    tl.store(y + token * C + channel, total.to(y.dtype.element_ty), mask=inside)
