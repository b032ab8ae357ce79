"""Which experts take which tokens: chosen, and set in order by expert, all on the device.

A (token, expert) is a pair, numbered token * K + k.  Pairs of an expert fill whole tiles of BM, so
that every tile of the products after this has one expert; how many tiles there may be at most
follows from shapes alone, and spare ones are marked.

Legend: T tokens, E experts, K experts a token, P = T K pairs.
"""

from __future__ import annotations

import triton
import triton.language as tl

from allmetal_triton.jit.early import let_next_begin, wait_for_last


# fmt: off
@triton.jit
def choose_experts(
    logits, correction, ids, weights, stride,
    E: tl.constexpr, EP: tl.constexpr, K: tl.constexpr, KP: tl.constexpr,
    SOFTMAX: tl.constexpr, RENORMALIZE: tl.constexpr, SCALE: tl.constexpr, EARLY: tl.constexpr,
):
    """A token a program: logits [T, E] -> ids [T, K] int32 and weights [T, K] float32.

    EP and KP are E and K rounded up to powers of two.  Of equal scores the first expert's counts
    more.
    """
    # fmt: on
    token = tl.program_id(0).to(tl.int64)
    expert, place = tl.arange(0, EP), tl.arange(0, KP)
    known = expert < E
    let_next_begin(EARLY)
    wait_for_last(EARLY)
    x = tl.load(logits + token * stride + expert, mask=known, other=float("-inf")).to(tl.float32)
    if SOFTMAX:
        scores = tl.exp(x - tl.max(x, axis=0))
        scores = scores / tl.sum(scores, axis=0)
    else:
        scores = tl.sigmoid(x)
    choice = scores
    if correction is not None:
        choice += tl.load(correction + expert, mask=known, other=0.0)
    choice = tl.where(known, choice, float("-inf"))
    chosen = tl.zeros([KP], dtype=tl.int32)
    worth = tl.zeros([KP], dtype=tl.float32)
    for k in range(K):
        # Logits that are no numbers choose an expert all the same, one that there is.
        best = tl.minimum(tl.argmax(choice, axis=0).to(tl.int32), E - 1)
        chosen = tl.where(place == k, best, chosen)
        worth = tl.where(place == k, tl.sum(tl.where(expert == best, scores, 0.0), axis=0), worth)
        choice = tl.where(expert == best, float("-inf"), choice)
    if RENORMALIZE:
        worth = worth / (tl.sum(worth, axis=0) + 1e-20)
    tl.store(ids + token * K + place, chosen, mask=place < K)
    tl.store(weights + token * K + place, worth * SCALE, mask=place < K)


# fmt: off
@triton.jit(do_not_specialize=["num_pairs", "num_tiles"])
def group_by_expert(
    ids, pairs, experts, num_pairs, num_tiles,
    E: tl.constexpr, EP: tl.constexpr, BM: tl.constexpr, CHUNK: tl.constexpr, EARLY: tl.constexpr,
):
    """An expert a program: its pairs, in order, into its tiles of pairs [tiles * BM] int32, and
    its number beside them in experts [tiles] int32; -1 where there is none.

    EP is a power of two above E.
    """
    # fmt: on
    mine = tl.program_id(0)
    expert, at = tl.arange(0, EP), tl.arange(0, CHUNK)
    let_next_begin(EARLY)
    wait_for_last(EARLY)
    counts = tl.zeros([EP], dtype=tl.int32)
    for begin in range(0, num_pairs, CHUNK):
        given = tl.load(ids + begin + at, mask=begin + at < num_pairs, other=E)
        counts += tl.histogram(given, EP).to(tl.int32)
    tiles = tl.where(expert < E, (counts + BM - 1) // BM, 0)
    first = tl.sum(tl.where(expert < mine, tiles, 0), axis=0)
    number = tl.sum(tl.where(expert == mine, tiles, 0), axis=0)
    row = tl.arange(0, BM)
    for tile in range(first, first + number):
        tl.store(experts + tile, mine)
        tl.store(pairs + tile * BM + row, tl.full([BM], -1, dtype=tl.int32))
    if mine == E - 1:
        for tile in range(first + number, num_tiles):
            tl.store(experts + tile, -1)
    tl.debug_barrier()  # of its own marks, before some are written over
    before = first * BM
    for begin in range(0, num_pairs, CHUNK):
        given = tl.load(ids + begin + at, mask=begin + at < num_pairs, other=E)
        is_mine = (given == mine).to(tl.int32)
        place = before + tl.cumsum(is_mine, axis=0) - 1
        tl.store(pairs + place, begin + at, mask=is_mine == 1)
        before += tl.sum(is_mine, axis=0)
