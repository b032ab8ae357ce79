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


@triton.jit
def _work(seq_lens, query_start, seq, num_seqs, GROUP: tl.constexpr, BLOCK_M: tl.constexpr,
          WINDOW: tl.constexpr, MIN_QUERY: tl.constexpr, MAX_QUERY: tl.constexpr):  # fmt: skip
    """Of sequences [SEQS]: length, first token, new tokens, tiles of rows, keys of a tile."""
    valid = seq < num_seqs
    seq_len = tl.load(seq_lens + seq, mask=valid, other=0)
    begin = tl.load(query_start + seq, mask=valid, other=0)
    query_len = tl.load(query_start + seq + 1, mask=valid, other=0) - begin
    active = (query_len >= MIN_QUERY) & (query_len <= MAX_QUERY) & (seq_len > 0)
    tiles = tl.where(active, (query_len * GROUP + BLOCK_M - 1) // BLOCK_M, 0)
    keys = tl.where(active, seq_len, 0)
    if WINDOW:
        keys = tl.minimum(keys, WINDOW + tl.minimum(query_len, BLOCK_M // GROUP + 1))
    return seq_len, begin, query_len, tiles, keys


@triton.jit
def _part(seq_lens, query_start, num_seqs, spare_items, GROUP: tl.constexpr,
          BLOCK_M: tl.constexpr, MIN_PART: tl.constexpr, WINDOW: tl.constexpr,
          MIN_QUERY: tl.constexpr, MAX_QUERY: tl.constexpr, SEQS: tl.constexpr):  # fmt: skip
    """Keys of a part: see `schedule`."""
    total = tl.zeros([], dtype=tl.int64)
    longest = tl.zeros([], dtype=tl.int32)
    for at in range(0, num_seqs, SEQS):
        _, _, _, tiles, keys = _work(seq_lens, query_start, at + tl.arange(0, SEQS), num_seqs,
                                     GROUP, BLOCK_M, WINDOW, MIN_QUERY, MAX_QUERY)  # fmt: skip
        total += tl.sum(tiles.to(tl.int64) * keys)
        longest = tl.maximum(longest, tl.max(keys, axis=0))
    least = tl.maximum((tl.sqrt(longest.to(tl.float32)) * PART_PER_ROOT).to(tl.int32), MIN_PART)
    return tl.maximum(((total + spare_items - 1) // spare_items).to(tl.int32), least)


# Nothing is specialised for the batch: one kernel serves all of them.
# fmt: off
@triton.jit(
    do_not_specialize=["num_seqs", "num_slots", "spare_items"],
    do_not_specialize_on_alignment=["seq_lens", "query_start"],
)
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
    part = _part(seq_lens, query_start, num_seqs, spare_items, GROUP, BLOCK_M, MIN_PART, WINDOW,
                 MIN_QUERY, MAX_QUERY, SEQS)  # fmt: skip
    slot = tl.program_id(0) * SLOTS + tl.arange(0, SLOTS)
    nothing = tl.zeros([SLOTS], dtype=tl.int32)
    owner, first, num_parts, num_tiles = nothing, nothing, nothing, nothing
    first_token, new_tokens, length = nothing, nothing, nothing
    before = tl.zeros([], dtype=tl.int32)
    for at in range(0, num_seqs, SEQS):
        seq = at + tl.arange(0, SEQS)
        seq_len, begin, query_len, tiles, keys = _work(
            seq_lens, query_start, seq, num_seqs, GROUP, BLOCK_M, WINDOW, MIN_QUERY, MAX_QUERY
        )
        parts = (keys + part - 1) // part
        end = before + tl.cumsum(tiles * parts, axis=0)
        start = end - tiles * parts
        before += tl.sum(tiles * parts, axis=0)
        mine = (start[None, :] <= slot[:, None]) & (slot[:, None] < end[None, :])
        owner += _of_owner(mine, seq + 1)
        first += _of_owner(mine, start)
        num_parts += _of_owner(mine, parts)
        num_tiles += _of_owner(mine, tiles)
        first_token += _of_owner(mine, begin)
        new_tokens += _of_owner(mine, query_len)
        length += _of_owner(mine, seq_len)

    place, num_parts = slot - first, tl.maximum(num_parts, 1)
    word = items + slot * 8
    exists = slot < num_slots
    tl.store(word, owner - 1, mask=exists)
    # Later tiles see more keys: the long ones first, so that none is started last.
    tl.store(word + 1, num_tiles - 1 - place // num_parts, mask=exists)
    tl.store(word + 2, place % num_parts, mask=exists)
    tl.store(word + 3, num_parts, mask=exists)
    tl.store(word + 4, first_token, mask=exists)
    tl.store(word + 5, new_tokens, mask=exists)
    tl.store(word + 6, length - new_tokens, mask=exists)
    head = tl.arange(0, HEADS)
    counter = slot[:, None] * KV_HEADS + head[None, :]
    zero = tl.zeros([SLOTS, HEADS], dtype=tl.int32)
    tl.store(counters + counter, zero, mask=exists[:, None] & (head[None, :] < KV_HEADS))
