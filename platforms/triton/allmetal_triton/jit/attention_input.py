"""From the fused QKV projection to attention's input, some heads of a token a program.

Legend: B heads of a program, A pairs of channels that rotate, C channels that do not.
"""

from __future__ import annotations

import triton
import triton.language as tl

from allmetal_triton.jit.early import let_next_begin, wait_for_last


@triton.jit
def _squares(row, NUM: tl.constexpr, BLOCK: tl.constexpr):
    """Sum of squares of NUM values from `row` on."""
    at = tl.arange(0, BLOCK)
    values = tl.load(row + at, mask=at < NUM, other=0.0).to(tl.float32)
    return tl.sum(values * values, axis=0)


@triton.jit
def _pair_channels(pair, INTERLEAVED: tl.constexpr, ROTARY: tl.constexpr):
    """Where the two channels of each pair are in a head."""
    if INTERLEAVED:
        return 2 * pair, 2 * pair + 1
    else:
        return pair, pair + ROTARY // 2


@triton.jit
def _load_pairs(base, pair, known, INTERLEAVED: tl.constexpr, ROTARY: tl.constexpr,
                A: tl.constexpr, B: tl.constexpr):  # fmt: skip
    """Both channels of each pair, [B, A] float32 each; neighbours in memory are read together."""
    if INTERLEAVED:
        channel = tl.arange(0, 2 * A)
        inside = known & (channel < ROTARY)[None, :]
        both = tl.load(base + channel[None, :], mask=inside, other=0.0).to(tl.float32)
        return tl.split(tl.reshape(both, [B, A, 2]))
    else:
        inside = known & (pair < ROTARY // 2)[None, :]
        first = tl.load(base + pair[None, :], mask=inside, other=0.0)
        second = tl.load(base + ROTARY // 2 + pair[None, :], mask=inside, other=0.0)
        return first.to(tl.float32), second.to(tl.float32)


@triton.jit
def _norm(values, factor, q_weight, k_weight, head, channel, known, is_q, is_k,
          NORM: tl.constexpr, OFFSET: tl.constexpr, Q_HEADS: tl.constexpr,
          DIM: tl.constexpr):  # fmt: skip
    """[B, channels] times each head's factor and weights; values of the cache stay as they are."""
    if NORM == "none":
        return values
    else:
        q_at, k_at = channel, channel
        if NORM == "full":
            q_at = head * DIM + channel
            k_at = (head - Q_HEADS) * DIM + channel
        of_q = tl.load(q_weight + q_at, mask=known & is_q, other=0.0).to(tl.float32)
        of_k = tl.load(k_weight + k_at, mask=known & is_k, other=0.0).to(tl.float32)
        return tl.where(is_q | is_k, values * factor * (of_q + of_k + OFFSET), values)


@triton.jit
def _factor(squares, row, is_q, NORM: tl.constexpr, EPS: tl.constexpr, Q_HEADS: tl.constexpr,
            KV_HEADS: tl.constexpr, DIM: tl.constexpr, Q_BLOCK: tl.constexpr,
            K_BLOCK: tl.constexpr):  # fmt: skip
    """1 / root mean square of each head, or of all heads of its kind, [B, 1]."""
    if NORM == "full":
        of_q = _squares(row, Q_HEADS * DIM, Q_BLOCK) / (Q_HEADS * DIM)
        of_k = _squares(row + Q_HEADS * DIM, KV_HEADS * DIM, K_BLOCK) / (KV_HEADS * DIM)
        return tl.rsqrt(tl.where(is_q, of_q, of_k) + EPS)
    else:
        return tl.rsqrt(squares / DIM + EPS)[:, None]


@triton.jit
def _turn(first, second, angles, pair, turns, ROTARY: tl.constexpr):
    """Rotate pairs [B, A] of the heads that turn."""
    inside = pair < ROTARY // 2
    cos = tl.load(angles + pair, mask=inside, other=1.0)[None, :]
    sin = tl.load(angles + ROTARY // 2 + pair, mask=inside, other=0.0)[None, :]
    turned = tl.where(turns, first * cos - second * sin, first)
    return turned, tl.where(turns, second * cos + first * sin, second)


@triton.jit
def _store(values, q_row, cache_row, head, channel, known, is_q, written,
           LIMIT: tl.constexpr, DIM: tl.constexpr):  # fmt: skip
    """Heads of queries to their row, keys and values to the cache, [B, channels]."""
    values = values.to(q_row.dtype.element_ty)
    tl.store(q_row + head * DIM + channel, values, mask=known & is_q)
    if LIMIT is not None:  # a narrow type has no infinity to spare
        values = tl.clamp(values.to(tl.float32), -LIMIT, LIMIT)
        # See `target.halved`.
        if cache_row.dtype.element_ty.is_fp8e4b8():
            values *= 0.5
        if cache_row.dtype.element_ty.is_fp8e5b16():
            values *= 0.5
    kept = values.to(cache_row.dtype.element_ty)
    tl.store(cache_row + channel, kept, mask=known & written)


# fmt: off
@triton.jit(do_not_specialize_on_alignment=["positions", "slot_mapping"])
def attention_input(
    qkv, positions, cos_sin, cache, slot_mapping, q_weight, k_weight, q,
    qkv_stride, block_stride, value_offset, token_stride, head_stride,
    Q_HEADS: tl.constexpr, KV_HEADS: tl.constexpr, DIM: tl.constexpr, PAGE: tl.constexpr,
    ROTARY: tl.constexpr, INTERLEAVED: tl.constexpr, NORM: tl.constexpr, EPS: tl.constexpr,
    OFFSET: tl.constexpr, LIMIT: tl.constexpr, A: tl.constexpr, C: tl.constexpr, B: tl.constexpr,
    Q_BLOCK: tl.constexpr, K_BLOCK: tl.constexpr, EARLY: tl.constexpr,
):
    """qkv [T, (Q_HEADS + 2 KV_HEADS) * DIM]; q [T, Q_HEADS, DIM] contiguous.  A token whose slot
    is negative is not kept.  LIMIT: where the cache's type saturates, None if it does not."""
    let_next_begin(EARLY)
    wait_for_last(EARLY)
    token = tl.program_id(0).to(tl.int64)
    head = (tl.program_id(1) * B + tl.arange(0, B))[:, None]
    row = qkv + token * qkv_stride
    known = head < Q_HEADS + 2 * KV_HEADS
    is_q = head < Q_HEADS
    is_k = (head >= Q_HEADS) & (head < Q_HEADS + KV_HEADS)
    base = row + head * DIM
    q_row = q + token * (Q_HEADS * DIM)
    slot = tl.load(slot_mapping + token)
    written = (slot >= 0) & (head >= Q_HEADS)
    kv_head = head - tl.where(is_k, Q_HEADS, Q_HEADS + KV_HEADS)
    kept_at = slot // PAGE * block_stride + slot % PAGE * token_stride
    cache_row = cache + kept_at + kv_head * head_stride + tl.where(is_k, 0, value_offset)

    pair, rest = tl.arange(0, A), tl.arange(0, C)
    rest_channel = (ROTARY + rest)[None, :]
    rest_known = known & (rest_channel < DIM)
    squares = tl.zeros([B], dtype=tl.float32)
    if ROTARY > 0:
        first, second = _load_pairs(base, pair, known, INTERLEAVED, ROTARY, A, B)
        squares += tl.sum(first * first + second * second, axis=1)
    if ROTARY < DIM:
        others = tl.load(base + rest_channel, mask=rest_known, other=0.0).to(tl.float32)
        squares += tl.sum(others * others, axis=1)

    factor = _factor(squares, row, is_q, NORM, EPS, Q_HEADS, KV_HEADS, DIM, Q_BLOCK, K_BLOCK)
    if ROTARY > 0:
        at_first, at_second = _pair_channels(pair[None, :], INTERLEAVED, ROTARY)
        turning = known & (pair < ROTARY // 2)[None, :]
        first = _norm(first, factor, q_weight, k_weight, head, at_first, turning, is_q, is_k,
                      NORM, OFFSET, Q_HEADS, DIM)
        second = _norm(second, factor, q_weight, k_weight, head, at_second, turning, is_q, is_k,
                       NORM, OFFSET, Q_HEADS, DIM)
        angles = cos_sin + tl.load(positions + token) * ROTARY
        first, second = _turn(first, second, angles, pair, is_q | is_k, ROTARY)
        if INTERLEAVED:
            both = tl.reshape(tl.join(first, second), [B, 2 * A])
            channel = tl.arange(0, 2 * A)[None, :]
            _store(both, q_row, cache_row, head, channel, known & (channel < ROTARY), is_q,
                   written, LIMIT, DIM)
        else:
            _store(first, q_row, cache_row, head, at_first, turning, is_q, written, LIMIT, DIM)
            _store(second, q_row, cache_row, head, at_second, turning, is_q, written, LIMIT, DIM)
    if ROTARY < DIM:
        others = _norm(others, factor, q_weight, k_weight, head, rest_channel, rest_known, is_q,
                       is_k, NORM, OFFSET, Q_HEADS, DIM)
        _store(others, q_row, cache_row, head, rest_channel, rest_known, is_q, written, LIMIT, DIM)
    # fmt: on
