"""A decode step's inputs from the sequences' state, one program a sequence and KV group.

Legend: B sequences, S slots, L longest sequence, G KV groups, P blocks a sequence at most.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["num_seqs"])
def read_state(
    words,
    tokens,
    tables,
    token_ids,
    positions,
    seq_lens,
    block_tables,
    slot_mappings,
    num_seqs,
    row_length,
    num_slots,
    width,
    PAGE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """words [2 + G, B]; tokens [S, L]; tables [G, S, P] and block_tables [G, B, P], of which only
    what a sequence has is copied."""
    seq, group = tl.program_id(0), tl.program_id(1)
    slot = tl.load(words + seq)
    length = tl.load(words + num_seqs + seq)
    opened = tl.load(words + (2 + group) * num_seqs + seq).to(tl.int32)
    position = length - 1
    last = position // PAGE
    source = tables + (group.to(tl.int64) * num_slots + slot) * width
    target = block_tables + (group.to(tl.int64) * num_seqs + seq) * width
    for first in range(0, last + 1, BLOCK):
        at = first + tl.arange(0, BLOCK)
        block = tl.load(source + at, mask=at <= last, other=0)
        block = tl.where((at == last) & (opened > 0), opened, block)
        tl.store(target + at, block, mask=at <= last)
    owned = tl.load(source + last)
    if opened > 0:
        owned = opened
        tl.store(source + last, opened)
    mapping = owned.to(tl.int64) * PAGE + position % PAGE
    tl.store(slot_mappings + group * num_seqs + seq, mapping)
    if group == 0:
        token = tl.load(tokens + slot * row_length + position)
        tl.store(token_ids + seq, token.to(tl.int64))
        tl.store(positions + seq, position)
        tl.store(seq_lens + seq, length.to(tl.int32))


@triton.jit(do_not_specialize=["num_seqs"])
def write_state(
    words,
    tokens,
    token_ids,
    logits,
    checked,
    num_seqs,
    row_length,
    logits_stride,
    vocab_size,
    BLOCK: tl.constexpr,
):
    """tokens[slot, length] = token of each sequence, which is checked first if there are logits."""
    seq = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = seq < num_seqs
    slot = tl.load(words + seq, mask=inside, other=0)
    length = tl.load(words + num_seqs + seq, mask=inside, other=0)
    token = tl.load(token_ids + seq, mask=inside, other=0)
    if logits is not None:
        known = inside & (token >= 0) & (token < vocab_size)
        place = seq.to(tl.int64) * logits_stride + token
        logit = tl.load(logits + place, mask=known, other=float("inf"))
        token = tl.where(tl.abs(logit) < float("inf"), token, -1)
        tl.store(checked + seq, token, mask=inside)
    written = tl.maximum(token, 0).to(tl.int32)
    tl.store(tokens + slot * row_length + length, written, mask=inside)
