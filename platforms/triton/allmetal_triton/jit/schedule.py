"""Who attends to what: a step's attention cut into items of about equal work, on the device.

The number of slots is fixed by the shapes of the batch; which of them hold an item, and how far
each reads, follows from the lengths alone.  So a recorded launch serves every batch of its shape,
and the host never looks at a length.
"""

from __future__ import annotations

import triton
import triton.language as tl

from allmetal_triton.jit.early import let_next_begin, wait_for_last

ITEM_WORDS = 8
"""An item is (sequence or -1, tile of rows, part of its keys, number of parts; then of its
sequence the first token in the batch, the new tokens, and the tokens before them)."""


PART_PER_ROOT = tl.constexpr(4)


@triton.jit
def _of_owner(mine, values):
    """The value [SEQS] of each slot's sequence, 0 where it has none."""
    return tl.sum(tl.where(mine, values[None, :], 0), axis=1)


# fmt: off
@triton.jit
def schedule(
    seq_lens, query_start, items, counters, num_seqs, num_slots, spare_items,
    GROUP: tl.constexpr, KV_HEADS: tl.constexpr, BLOCK_M: tl.constexpr, MIN_PART: tl.constexpr,
    WINDOW: tl.constexpr, MIN_QUERY: tl.constexpr, MAX_QUERY: tl.constexpr,
    SEQS: tl.constexpr, SLOTS: tl.constexpr, HEADS: tl.constexpr, EARLY: tl.constexpr,
):
    """Sequences of MIN_QUERY to MAX_QUERY new tokens: each of their tiles, in parts such that
    those beyond one a tile fit `spare_items`.  Zeroes the counters.

    Parts are read side by side and added up one behind the other, so their number grows with the
    square root of the keys at most; and none has less than MIN_PART.
    """
    # fmt: on
    let_next_begin(EARLY)
    wait_for_last(EARLY)
    seq = tl.arange(0, SEQS)
    valid = seq < num_seqs
    seq_len = tl.load(seq_lens + seq, mask=valid, other=0)
    begin = tl.load(query_start + seq, mask=valid, other=0)
    query_len = tl.load(query_start + seq + 1, mask=valid, other=0) - begin
    active = (query_len >= MIN_QUERY) & (query_len <= MAX_QUERY) & (seq_len > 0)
    tiles = tl.where(active, (query_len * GROUP + BLOCK_M - 1) // BLOCK_M, 0)
    keys = seq_len
    if WINDOW:
        keys = tl.minimum(keys, WINDOW + tl.minimum(query_len, BLOCK_M // GROUP + 1))
    total = tl.sum(tiles.to(tl.int64) * keys)
    longest = tl.max(tl.where(active, keys, 0), axis=0).to(tl.float32)
    least = tl.maximum((tl.sqrt(longest) * PART_PER_ROOT).to(tl.int32), MIN_PART)
    part = tl.maximum(((total + spare_items - 1) // spare_items).to(tl.int32), least)
    parts = tl.where(active, (keys + part - 1) // part, 0)
    end = tl.cumsum(tiles * parts, axis=0)
    start = end - tiles * parts

    slot = tl.program_id(0) * SLOTS + tl.arange(0, SLOTS)
    mine = (start[None, :] <= slot[:, None]) & (slot[:, None] < end[None, :])
    place = slot - _of_owner(mine, start)
    num_parts = tl.maximum(_of_owner(mine, parts), 1)
    word = items + slot * 8
    exists = slot < num_slots
    new_tokens = _of_owner(mine, query_len)
    tl.store(word, _of_owner(mine, seq + 1) - 1, mask=exists)
    # Later tiles see more keys: the long ones first, so that none is started last.
    tl.store(word + 1, _of_owner(mine, tiles) - 1 - place // num_parts, mask=exists)
    tl.store(word + 2, place % num_parts, mask=exists)
    tl.store(word + 3, num_parts, mask=exists)
    tl.store(word + 4, _of_owner(mine, begin), mask=exists)
    tl.store(word + 5, new_tokens, mask=exists)
    tl.store(word + 6, _of_owner(mine, seq_len) - new_tokens, mask=exists)
    head = tl.arange(0, HEADS)
    counter = slot[:, None] * KV_HEADS + head[None, :]
    zero = tl.zeros([SLOTS, HEADS], dtype=tl.int32)
    tl.store(counters + counter, zero, mask=exists[:, None] & (head[None, :] < KV_HEADS))
