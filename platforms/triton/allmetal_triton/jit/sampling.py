"""Logits to tokens: what is largest, and what is drawn.

Rows are cut into chunks of a size that depends on the vocabulary alone, so that no sum depends on
how many rows there are.  Scores are (logit - largest logit) / temperature.

Legend: V vocabulary, S chunks a row.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def scores_at(logits, top, rate, at, size, BLOCK: tl.constexpr):
    """Scores of BLOCK tokens from `at` on, -inf behind the row's end."""
    token = at + tl.arange(0, BLOCK)
    x = tl.load(logits + token, mask=token < size, other=float("-inf"))
    return (x - top) * rate


@triton.jit
def rate_of(temperature, row):
    """One over a row's temperature; greedy rows are computed at 1 and not used."""
    t = tl.load(temperature + row)
    return 1.0 / tl.where(t > 0, t, 1.0)


@triton.jit
def row_top(tops, row, chunks, S: tl.constexpr):
    """The largest of a row's chunks [S], and the largest of them."""
    chunk = tl.arange(0, S)
    top = tl.load(tops + row * chunks + chunk, mask=chunk < chunks, other=float("-inf"))
    return top, tl.max(top, axis=0)


# fmt: off
@triton.jit
def chunk_tops(
    logits, temperature, tops, places, lows, sums, stride, size, chunks, CHUNK: tl.constexpr,
):
    """Largest value of a chunk and its first place; for rows that draw, also its least finite
    value and its mass relative to the largest."""
    # fmt: on
    row, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1)
    token = chunk * CHUNK + tl.arange(0, CHUNK)
    x = tl.load(logits + row * stride + token, mask=token < size, other=float("-inf"))
    top, place = tl.max(x, axis=0, return_indices=True, return_indices_tie_break_left=True)
    out = row * chunks + chunk
    tl.store(tops + out, top)
    # Where nothing is larger than anything (not numbers), still a token.
    tl.store(places + out, tl.minimum(chunk * CHUNK + place, size - 1))
    if temperature is not None:
        base = tl.where(top == float("-inf"), 0.0, top)
        tl.store(lows + out, tl.min(tl.where(x == float("-inf"), float("inf"), x), axis=0))
        mass = tl.exp((x - base) * rate_of(temperature, row))
        tl.store(sums + out, tl.sum(mass, axis=0))


@triton.jit
def pick_top(tops, places, tokens, chunks, S: tl.constexpr):
    """The first of a row's largest values."""
    row = tl.program_id(0).to(tl.int64)
    top, _ = row_top(tops, row, chunks, S)
    best = tl.minimum(tl.argmax(top, axis=0), chunks - 1)
    place = tl.load(places + row * chunks + best)
    tl.store(tokens + row, place.to(tl.int64))


# ---- drawing -------------------------------------------------------------------------------


# fmt: off
@triton.jit
def chunk_masses(
    logits, temperature, tops, least, sums, stride, size, chunks,
    CHUNK: tl.constexpr, S: tl.constexpr,
):
    """Mass of each chunk's tokens that the row's threshold keeps, relative to the row's top."""
    # fmt: on
    row, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1)
    _, top = row_top(tops, row, chunks, S)
    rate = rate_of(temperature, row)
    score = scores_at(logits + row * stride, top, rate, chunk * CHUNK, size, CHUNK)
    mass = tl.where(score >= tl.load(least + row), tl.exp(score), 0.0)
    tl.store(sums + row * chunks + chunk, tl.sum(mass, axis=0))


@triton.jit
def _first_beyond(masses, target, SIZE: tl.constexpr):
    """Where the running sum of masses [SIZE] first exceeds `target`; a place with mass, whatever
    rounding does."""
    place = tl.arange(0, SIZE)
    real = masses > 0
    beyond = (tl.cumsum(masses, axis=0) > target) & real
    first = tl.min(tl.where(beyond, place, SIZE), axis=0)
    last = tl.max(tl.where(real, place, 0), axis=0)
    return tl.where(first < SIZE, first, last)


# fmt: off
@triton.jit
def draw(
    logits, temperature, uniform, tops, places, least, sums, tokens, stride, size, chunks,
    CHUNK: tl.constexpr, S: tl.constexpr,
):
    """The first token, in vocabulary order, whose cumulative share exceeds `uniform`; the largest
    where the temperature is 0.  `sums` are relative to the row's top if there are thresholds
    `least`, else to each chunk's."""
    # fmt: on
    row = tl.program_id(0).to(tl.int64)
    chunk_top, top = row_top(tops, row, chunks, S)
    if tl.load(temperature + row) > 0:
        rate = rate_of(temperature, row)
        chunk = tl.arange(0, S)
        mass = tl.load(sums + row * chunks + chunk, mask=chunk < chunks, other=0.0)
        if least is None:
            mass = mass * tl.exp((chunk_top - top) * rate)
        total = tl.sum(mass, axis=0)
        below = (total.to(tl.int32, bitcast=True) - 1).to(tl.float32, bitcast=True)
        target = tl.minimum(tl.load(uniform + row) * total, below)
        here = _first_beyond(mass, target, S)
        target -= tl.sum(tl.where(chunk < here, mass, 0.0), axis=0)
        score = scores_at(logits + row * stride, top, rate, here * CHUNK, size, CHUNK)
        each = tl.exp(score)
        if least is not None:
            each = tl.where(score >= tl.load(least + row), each, 0.0)
        token = here * CHUNK + _first_beyond(each, target, CHUNK)
    else:
        here = tl.minimum(tl.argmax(chunk_top, axis=0), chunks - 1)
        token = tl.load(places + row * chunks + here)
    tl.store(tokens + row, token.to(tl.int64))
