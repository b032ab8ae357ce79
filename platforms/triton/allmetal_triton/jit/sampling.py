"""Logits to tokens without a sort: every filter is a threshold, and a threshold is searched for.

Min-p, top-k and top-p each keep the tokens that are as likely as some last one.  For top-k that is
the largest value with at least k tokens no smaller; for top-p the largest with at least that share
of the mass no smaller.  Both are found by narrowing an interval, some pivots a pass.

Rows are cut into chunks of a size that depends on nothing, so that no sum depends on how many rows
there are.  Scores are (logit - largest logit) / temperature.

Legend: V vocabulary, S chunks a row.
"""

from __future__ import annotations

import triton
import triton.language as tl

PIVOTS = tl.constexpr(8)


@triton.jit
def _scores(logits, top, temperature, at, size, BLOCK: tl.constexpr):
    """Scores of BLOCK tokens from `at` on, -inf behind the row's end."""
    token = at + tl.arange(0, BLOCK)
    x = tl.load(logits + token, mask=token < size, other=float("-inf"))
    return tl.div_rn(x - top, temperature)


@triton.jit
def _warmth(temperature, row):
    """A row's temperature; greedy rows are computed at 1 and not used."""
    t = tl.load(temperature + row)
    return tl.where(t > 0, t, 1.0)


@triton.jit
def _row_top(tops, row, chunks, S: tl.constexpr):
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
    tl.store(places + out, chunk * CHUNK + place)
    if temperature is not None:
        base = tl.where(top == float("-inf"), 0.0, top)
        tl.store(lows + out, tl.min(tl.where(x == float("-inf"), float("inf"), x), axis=0))
        tl.store(sums + out, tl.sum(tl.exp(tl.div_rn(x - base, _warmth(temperature, row))), axis=0))


@triton.jit
def pick_top(tops, places, tokens, chunks, S: tl.constexpr):
    """The first of a row's largest values."""
    row = tl.program_id(0).to(tl.int64)
    top, _ = _row_top(tops, row, chunks, S)
    place = tl.load(places + row * chunks + tl.argmax(top, axis=0))
    tl.store(tokens + row, place.to(tl.int64))


# ---- thresholds ----------------------------------------------------------------------------


@triton.jit
def _weigh(score, WEIGHT: tl.constexpr):
    """A token's mass, or one."""
    if WEIGHT == "mass":
        return tl.exp(score)
    else:
        return tl.full(score.shape, 1.0, dtype=tl.float32)


@triton.jit
def _total(logits, top, warmth, low, size, BLOCK: tl.constexpr):
    """Mass of the scores from `low` on."""
    total = tl.zeros([BLOCK], dtype=tl.float32)
    for at in range(0, size, BLOCK):
        score = _scores(logits, top, warmth, at, size, BLOCK)
        total += tl.where(score >= low, tl.exp(score), 0.0)
    return tl.sum(total, axis=0)


@triton.jit
def _search(logits, top, warmth, low, goal, size, WEIGHT: tl.constexpr, BLOCK: tl.constexpr):
    """The largest score such that the scores no smaller weigh `goal` or more, or else `low`.

    It is among the scores from `least` to `high`, both of which exist, and below `bound`.
    """
    least = low
    high = tl.where(low < 0, 0.0, low)
    bound = tl.where(low < 0, float("inf"), float("inf"))
    part = tl.arange(0, PIVOTS) + 1
    while least < high:
        pivot = tl.where(part == PIVOTS, high, least + (high - least) * (part / PIVOTS))
        weight = tl.zeros([PIVOTS, BLOCK], dtype=tl.float32)
        for at in range(0, size, BLOCK):
            score = _scores(logits, top, warmth, at, size, BLOCK)
            above = score[None, :] >= pivot[:, None]
            weight += tl.where(above, _weigh(score, WEIGHT)[None, :], 0.0)
        enough = tl.sum(weight, axis=1) >= goal
        floor = tl.max(tl.where(enough, pivot, least), axis=0)
        bound = tl.min(tl.where(enough, bound, pivot), axis=0)
        lowest = tl.full([BLOCK], float("inf"), dtype=tl.float32)
        highest = tl.full([BLOCK], float("-inf"), dtype=tl.float32)
        for at in range(0, size, BLOCK):
            score = _scores(logits, top, warmth, at, size, BLOCK)
            within = (score >= floor) & (score < bound)
            lowest = tl.minimum(lowest, tl.where(within, score, float("inf")))
            highest = tl.maximum(highest, tl.where(within, score, float("-inf")))
        least, high = tl.min(lowest, axis=0), tl.max(highest, axis=0)
    return least


@triton.jit
def _gather_likely(logits, top, warmth, low, cut, likely, size, CAPACITY: tl.constexpr,
                   BLOCK: tl.constexpr):  # fmt: skip
    """Copy the scores from `cut` on; returns their number, and number and mass from `low` on."""
    found = 0
    count = tl.zeros([BLOCK], dtype=tl.int32)
    mass = tl.zeros([BLOCK], dtype=tl.float32)
    for at in range(0, size, BLOCK):
        score = _scores(logits, top, warmth, at, size, BLOCK)
        kept = score >= low
        count += kept.to(tl.int32)
        mass += tl.where(kept, tl.exp(score), 0.0)
        taken = (score >= cut).to(tl.int32)
        place = found + tl.cumsum(taken, axis=0) - 1
        tl.store(likely + place, score, mask=(taken > 0) & (place < CAPACITY))
        found += tl.sum(taken, axis=0)
    tl.debug_barrier()  # all threads read what each has written
    return tl.minimum(found, CAPACITY), tl.sum(count, axis=0), tl.sum(mass, axis=0)


# fmt: off
@triton.jit
def thresholds(
    logits, temperature, top_k, top_p, min_p, tops, lows, sums, likely, least, stride, size,
    chunks, CAPACITY: tl.constexpr, S: tl.constexpr, BLOCK: tl.constexpr,
):
    """The score of each row's last token that min-p, then top-k, then top-p keep.

    At most 1 / x tokens have a share of x or more, so the likely ones fit a small list.  Only
    where the last token kept is not on it is the whole row searched.
    """
    # fmt: on
    row = tl.program_id(0).to(tl.int64)
    logits += row * stride
    likely += row * CAPACITY
    chunk_top, top = _row_top(tops, row, chunks, S)
    warmth = _warmth(temperature, row)
    chunk = tl.arange(0, S)
    in_row = chunk < chunks
    chunk_low = tl.load(lows + row * chunks + chunk, mask=in_row, other=float("inf"))
    chunk_sum = tl.load(sums + row * chunks + chunk, mask=in_row, other=0.0)
    everything = tl.sum(chunk_sum * tl.exp(tl.div_rn(chunk_top - top, warmth)), axis=0)
    low = tl.div_rn(tl.min(chunk_low, axis=0) - top, warmth)
    if min_p is not None:
        low = tl.maximum(low, tl.log(tl.load(min_p + row)))
    # A little above one part in CAPACITY, for what rounding does to the sum.
    cut = tl.maximum(low, tl.log(everything * (1.05 / CAPACITY)))
    found, count, mass = _gather_likely(
        logits, top, warmth, low, cut, likely, size, CAPACITY, BLOCK)  # fmt: skip
    if top_k is not None:
        k = tl.load(top_k + row)
        if (k > 0) & (k < count):
            if found >= k:
                low = _search(likely, 0.0, 1.0, cut, k, found, "one", BLOCK)
                mass = _total(likely, 0.0, 1.0, low, found, BLOCK)
            else:
                low = _search(logits, top, warmth, low, k, size, "one", BLOCK)
                mass = _total(logits, top, warmth, low, size, BLOCK)
    if top_p is not None:
        p = tl.load(top_p + row)
        if p < 1:
            listed = tl.maximum(low, cut)
            if _total(likely, 0.0, 1.0, listed, found, BLOCK) >= p * mass:
                low = _search(likely, 0.0, 1.0, listed, p * mass, found, "mass", BLOCK)
            else:
                low = _search(logits, top, warmth, low, p * mass, size, "mass", BLOCK)
    tl.store(least + row, low)


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
    _, top = _row_top(tops, row, chunks, S)
    warmth = _warmth(temperature, row)
    score = _scores(logits + row * stride, top, warmth, chunk * CHUNK, size, CHUNK)
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
    chunk_top, top = _row_top(tops, row, chunks, S)
    if tl.load(temperature + row) > 0:
        warmth = _warmth(temperature, row)
        chunk = tl.arange(0, S)
        mass = tl.load(sums + row * chunks + chunk, mask=chunk < chunks, other=0.0)
        if least is None:
            mass = mass * tl.exp(tl.div_rn(chunk_top - top, warmth))
        total = tl.sum(mass, axis=0)
        below = (total.to(tl.int32, bitcast=True) - 1).to(tl.float32, bitcast=True)
        target = tl.minimum(tl.load(uniform + row) * total, below)
        here = _first_beyond(mass, target, S)
        target -= tl.sum(tl.where(chunk < here, mass, 0.0), axis=0)
        score = _scores(logits + row * stride, top, warmth, here * CHUNK, size, CHUNK)
        each = tl.exp(score)
        if least is not None:
            each = tl.where(score >= tl.load(least + row), each, 0.0)
        token = here * CHUNK + _first_beyond(each, target, CHUNK)
    else:
        token = tl.load(places + row * chunks + tl.argmax(chunk_top, axis=0))
    tl.store(tokens + row, token.to(tl.int64))
