"""Who attends to what: a step's attention cut into items of about equal work, on the device.

The number of slots is fixed by the shapes of the batch; which of them hold an item, and how far
each reads, follows from the lengths alone.  So a recorded launch serves every batch of its shape,
and the host never looks at a length.
"""

from __future__ import annotations

import triton
import triton.language as tl

ITEM_WORDS = 4
"""An item is (sequence or -1, tile of rows, part of its keys, number of parts)."""


@triton.jit
def schedule(
    seq_lens,
    query_start,
    items,
    counters,
    num_seqs,
    num_slots,
    spare_items,
    GROUP: tl.constexpr,
    KV_HEADS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    MIN_PART: tl.constexpr,
    WINDOW: tl.constexpr,
    MIN_QUERY: tl.constexpr,
    MAX_QUERY: tl.constexpr,
    SEQS: tl.constexpr,
    SLOTS: tl.constexpr,
    HEADS: tl.constexpr,
):
    """Sequences of MIN_QUERY to MAX_QUERY new tokens: each of their tiles, in parts of at least
    MIN_PART keys, so that parts beyond one a tile fit `spare_items`.  Zeroes the counters.
    """
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
    part = tl.maximum((total + spare_items - 1) // spare_items, MIN_PART).to(tl.int32)
    parts = tl.where(active, (keys + part - 1) // part, 0)
    end = tl.cumsum(tiles * parts, axis=0)
    start = end - tiles * parts

    slot = tl.program_id(0) * SLOTS + tl.arange(0, SLOTS)
    mine = (start[None, :] <= slot[:, None]) & (slot[:, None] < end[None, :])
    place = tl.sum(tl.where(mine, slot[:, None] - start[None, :], 0), axis=1)
    num_tiles = tl.sum(tl.where(mine, tiles[None, :], 0), axis=1)
    num_parts = tl.maximum(tl.sum(tl.where(mine, parts[None, :], 0), axis=1), 1)
    owner = tl.sum(tl.where(mine, seq[None, :] + 1, 0), axis=1) - 1
    # Later tiles see more keys: the long ones first, so that none is started last.
    tile = num_tiles - 1 - place // num_parts
    word = items + slot * 4
    exists = slot < num_slots
    tl.store(word, owner, mask=exists)
    tl.store(word + 1, tile, mask=exists)
    tl.store(word + 2, place % num_parts, mask=exists)
    tl.store(word + 3, num_parts, mask=exists)
    head = tl.arange(0, HEADS)
    counter = slot[:, None] * KV_HEADS + head[None, :]
    zero = tl.zeros([SLOTS, HEADS], dtype=tl.int32)
    tl.store(counters + counter, zero, mask=exists[:, None] & (head[None, :] < KV_HEADS))
