"""What min-p, top-k and top-p keep of a row, without a sort: each keeps the tokens that are as
likely as some last one, so together they are a threshold, and a threshold is searched for.

For top-k it is the largest score with at least k no smaller, for top-p the largest with at least
that share of the mass no smaller.  Passes over all rows at once narrow an interval for it, by eight
each; the few scores left in it are copied to a list, LISTED of each chunk, which one program a row
looks through.  Only rows with a chunk that has more are searched whole.

A row with top-k is searched by count, and its list then holds all that top-k keeps, for top-p to
be searched there.

Legend: V vocabulary, S chunks a row, P pivots.
"""

from __future__ import annotations

import triton
import triton.language as tl

from allmetal_triton.jit.sampling import rate_of, row_top, scores_at

PIVOTS = tl.constexpr(8)
NEGLIGIBLE = tl.constexpr(-40.0)
"""Scores below have no mass that float32 could tell of."""
STATE_WORDS = 12
"""Of a row after a pass: eight pivots, the interval's end, the weight of the scores from there on,
and the weight of all scores that min-p keeps."""


@triton.jit
def _wants(top_k, top_p, row):
    """(k, p) of a row, 0 and 1 where they are off."""
    k = (row * 0).to(tl.int32)
    p = k.to(tl.float32) + 1.0
    if top_k is not None:
        k = tl.load(top_k + row)
    if top_p is not None:
        p = tl.load(top_p + row)
    return k, p


@triton.jit
def _least(lows, min_p, row, top, rate, chunks, by_mass, S: tl.constexpr):
    """The least score there is to keep."""
    chunk = tl.arange(0, S)
    low = tl.load(lows + row * chunks + chunk, mask=chunk < chunks, other=float("inf"))
    least = (tl.min(low, axis=0) - top) * rate
    if min_p is not None:
        least = tl.maximum(least, tl.log(tl.load(min_p + row)))
    return tl.where(by_mass, tl.maximum(least, NEGLIGIBLE), least)


@triton.jit
def _weights_from(logits, top, rate, low, step, high, at, size, by_mass, CHUNK: tl.constexpr,
                  FIRST: tl.constexpr):  # fmt: skip
    """Weight of a chunk's scores from each pivot on, [P].

    Pivots one by one over scores held in registers: a table of both would not fit there.
    """
    score = scores_at(logits, top, rate, at, size, CHUNK)
    weight = tl.where(by_mass, tl.exp(score), 1.0)
    number = tl.arange(0, PIVOTS)
    found = tl.zeros([PIVOTS], dtype=tl.float32)
    for turn in tl.static_range(PIVOTS):
        pivot = _pivot(low, step, high, turn + FIRST)
        each = tl.sum(tl.where(score >= pivot, weight, 0.0), axis=0)
        found = tl.where(number == turn, each, found)
    return found


@triton.jit
def _pivot(low, step, high, number):
    """Eight steps from `low` to `high`: what is computed for one is computed for all alike."""
    return tl.where(number == PIVOTS, high, tl.fma(step, number * 1.0, low))


@triton.jit
def _narrowed(state, found, k, p, chunks, S: tl.constexpr):
    """The interval after a pass, from its pivots and its chunks' weights: (low, high, over, all).

    `over` is the weight of the scores from `high` on, `all` that of the first pass's lowest pivot.
    """
    number = tl.arange(0, PIVOTS)
    pivot = tl.load(state + number)
    high, over, all_kept = tl.load(state + 8), tl.load(state + 9), tl.load(state + 10)
    chunk = tl.arange(0, S)
    each = tl.load(found + chunk[:, None] * PIVOTS + number[None, :],
                   mask=(chunk < chunks)[:, None], other=0.0)  # fmt: skip
    weight = tl.sum(each, axis=0)
    all_kept = tl.where(all_kept < 0, tl.max(weight, axis=0), all_kept)
    goal = tl.where(k > 0, k.to(tl.float32), p * all_kept)
    enough = (weight >= goal) | (number == 0)
    last = tl.max(tl.where(enough, number, 0), axis=0)
    low = tl.max(tl.where(number == last, pivot, float("-inf")), axis=0)
    after = number == last + 1
    if last + 1 < PIVOTS:
        high = tl.max(tl.where(after, pivot, float("-inf")), axis=0)
        over = tl.max(tl.where(after, weight, 0.0), axis=0)
    return low, high, over, all_kept


# fmt: off
@triton.jit
def narrow(
    logits, temperature, top_k, top_p, min_p, tops, lows, before, weights_before, after, weights,
    stride, size, chunks, CHUNK: tl.constexpr, S: tl.constexpr, FIRST: tl.constexpr,
):
    """One pass: the state and the chunks' weights of the pass before to those of this one."""
    # fmt: on
    row, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1)
    k, p = _wants(top_k, top_p, row)
    number = tl.arange(0, PIVOTS)
    _, top = row_top(tops, row, chunks, S)
    rate = rate_of(temperature, row)
    by_mass = k <= 0
    if FIRST:
        low = _least(lows, min_p, row, top, rate, chunks, by_mass, S)
        high = tl.maximum(-low, 1.0) * 1e-6  # above the largest score, which is 0
        over, all_kept = 0.0, -1.0
    else:
        low, high, over, all_kept = _narrowed(
            before + row * 12, weights_before + row * chunks * PIVOTS, k, p, chunks, S)  # fmt: skip
    step = (high - low) * (1.0 / PIVOTS)
    if chunk == 0:
        state = after + row * 12
        tl.store(state + number, _pivot(low, step, high, number))
        tl.store(state + 8, high)
        tl.store(state + 9, over)
        tl.store(state + 10, all_kept)
    if (k > 0) | (p < 1):
        each = _weights_from(logits + row * stride, top, rate, low, step, high, chunk * CHUNK,
                             size, by_mass, CHUNK, 0)  # fmt: skip
        tl.store(weights + (row * chunks + chunk) * PIVOTS + number, each)


# fmt: off
@triton.jit
def collect(
    logits, temperature, top_k, top_p, tops, before, weights_before, after, listed, counts,
    stride, size, chunks, CHUNK: tl.constexpr, S: tl.constexpr, LISTED: tl.constexpr,
):
    """Copy the scores of the interval that is left, or for top-k all from its beginning on."""
    # fmt: on
    row, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1)
    k, p = _wants(top_k, top_p, row)
    if (k > 0) | (p < 1):
        low, high, over, all_kept = _narrowed(
            before + row * 12, weights_before + row * chunks * PIVOTS, k, p, chunks, S)  # fmt: skip
        if chunk == 0:
            state = after + row * 12
            tl.store(state, low)
            tl.store(state + 9, over)
            tl.store(state + 10, all_kept)
        _, top = row_top(tops, row, chunks, S)
        rate = rate_of(temperature, row)
        score = scores_at(logits + row * stride, top, rate, chunk * CHUNK, size, CHUNK)
        taken = ((score >= low) & ((score < high) | (k > 0))).to(tl.int32)
        count = tl.sum(taken, axis=0)
        mine = row * chunks + chunk
        tl.store(counts + mine, count)
        if count > 0:
            place = tl.cumsum(taken, axis=0) - 1
            tl.store(listed + mine * LISTED + place, score, mask=(taken > 0) & (place < LISTED))
        rest = tl.arange(0, LISTED)
        nothing = tl.full([LISTED], float("-inf"), dtype=tl.float32)
        tl.store(listed + mine * LISTED + rest, nothing, mask=rest >= count)


# ---- the end of the search -----------------------------------------------------------------


@triton.jit
def _total(logits, top, rate, low, size, BLOCK: tl.constexpr):
    """Mass of the scores from `low` on."""
    total = tl.zeros([BLOCK], dtype=tl.float32)
    for at in range(0, size, BLOCK):
        score = scores_at(logits, top, rate, at, size, BLOCK)
        total += tl.where(score >= low, tl.exp(score), 0.0)
    return tl.sum(total, axis=0)


@triton.jit
def _search(logits, top, rate, low, goal, size, by_mass, BLOCK: tl.constexpr):
    """The largest score such that the scores no smaller weigh `goal` or more, or else the least
    from `low` on.

    It is among the scores from `least` to `high`, both of which exist, and below `bound`.
    """
    least = tl.where(low < 0, low, 0.0)
    high = tl.where(low < 0, 0.0, low)
    bound = tl.where(low < 0, float("inf"), float("inf"))
    part = tl.arange(0, PIVOTS) + 1
    while least < high:
        step = (high - least) * (1.0 / PIVOTS)
        pivot = _pivot(least, step, high, part)
        weight = tl.zeros([PIVOTS], dtype=tl.float32)
        for at in range(0, size, BLOCK):
            weight += _weights_from(logits, top, rate, least, step, high, at, size, by_mass,
                                    BLOCK, 1)  # fmt: skip
        enough = weight >= goal
        floor = tl.max(tl.where(enough, pivot, least), axis=0)
        bound = tl.min(tl.where(enough, bound, pivot), axis=0)
        lowest = tl.where(low < 0, float("inf"), float("inf"))
        highest = -lowest
        for at in range(0, size, BLOCK):
            score = scores_at(logits, top, rate, at, size, BLOCK)
            within = (score >= floor) & (score < bound)
            lowest = tl.minimum(lowest, tl.min(tl.where(within, score, float("inf")), axis=0))
            highest = tl.maximum(highest, tl.max(tl.where(within, score, float("-inf")), axis=0))
        # Rounding may leave nothing within: then all that is left is kept.
        least = tl.where(lowest <= highest, lowest, floor)
        high = tl.where(lowest <= highest, highest, floor)
    return least


# fmt: off
@triton.jit
def resolve(
    logits, temperature, top_k, top_p, min_p, tops, lows, state, listed, counts, least, stride,
    size, chunks, LISTED: tl.constexpr, S: tl.constexpr, BLOCK: tl.constexpr,
    NARROWED: tl.constexpr,
):
    """The score of each row's last token that min-p, then top-k, then top-p keep."""
    # fmt: on
    row = tl.program_id(0).to(tl.int64)
    k, p = _wants(top_k, top_p, row)
    _, top = row_top(tops, row, chunks, S)
    rate = rate_of(temperature, row)
    low = _least(lows, min_p, row, top, rate, chunks, False, S)
    if NARROWED:  # noqa: SIM102  # older compilers read what follows an `and` in any case
        if (k > 0) | (p < 1):
            chunk = tl.arange(0, S)
            count = tl.load(counts + row * chunks + chunk, mask=chunk < chunks, other=0)
            low, over = tl.load(state + row * 12), tl.load(state + row * 12 + 9)
            all_kept = tl.load(state + row * 12 + 10)
            if tl.max(count, axis=0) > LISTED:
                low = _resolve_in(logits + row * stride, top, rate, low, 0.0, all_kept, k, p, size,
                                  BLOCK)  # fmt: skip
            else:
                low = _resolve_in(listed + row * chunks * LISTED, 0.0, 1.0, low, over, all_kept, k,
                                  p, chunks * LISTED, BLOCK)  # fmt: skip
    tl.store(least + row, low)


@triton.jit
def _resolve_in(values, top, rate, low, over, all_kept, k, p, size, BLOCK: tl.constexpr):
    """Search `values`, a whole row or its list.  `over`: the weight of what they leave out."""
    if k > 0:
        if all_kept > k:
            low = _search(values, top, rate, low, k.to(tl.float32), size, False, BLOCK)
        if p < 1:
            goal = p * _total(values, top, rate, low, size, BLOCK)
            low = _search(values, top, rate, low, goal, size, True, BLOCK)
    else:
        goal = tl.maximum(p * all_kept - over, 1e-30)  # something is kept, whatever rounding does
        low = _search(values, top, rate, low, goal, size, True, BLOCK)
    return low
