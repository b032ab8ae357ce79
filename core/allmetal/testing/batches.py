"""Batches over a paged cache, laid out at random, as kernels meet them.

Legend: T tokens, B sequences, P blocks a sequence at most.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from allmetal.platform.batch import AttentionBatch


@dataclass(frozen=True, slots=True, kw_only=True)
class PagedBatch:
    """`attention` is the step under test; `history` has every token that is in the cache after
    it, so that the whole cache can be written at once.  Block 0 is the null block."""

    attention: AttentionBatch
    history: torch.Tensor  # [sum of seq_lens] int64: slots of all tokens, sequence by sequence
    query_index: torch.Tensor  # [T] int64: where the step's tokens are in `history`
    num_blocks: int


def paged_batch(
    query_lens: Sequence[int],
    seq_lens: Sequence[int],
    block_size: int,
    *,
    generator: torch.Generator,
    spare_blocks: int = 3,
) -> PagedBatch:
    """Sequence i has seq_lens[i] tokens in the cache, the last query_lens[i] of them new.

    Blocks are handed out in random order; `spare_blocks` belong to nobody.
    """
    counts = [-(-n // block_size) for n in seq_lens]
    num_blocks = 1 + sum(counts) + spare_blocks
    free = (1 + torch.randperm(num_blocks - 1, generator=generator)).tolist()
    table = torch.zeros(len(seq_lens), max(counts, default=0), dtype=torch.int32)
    history, query_index, total = [], [], 0
    for row, (count, seq_len, query_len) in enumerate(
        zip(counts, seq_lens, query_lens, strict=True)
    ):
        blocks = torch.tensor([free.pop() for _ in range(count)])
        table[row, :count] = blocks
        at = torch.arange(seq_len)
        history.append(blocks[at // block_size] * block_size + at % block_size)
        query_index.append(torch.arange(total + seq_len - query_len, total + seq_len))
        total += seq_len
    slots = torch.cat(history) if history else torch.empty(0, dtype=torch.int64)
    index = torch.cat(query_index) if query_index else torch.empty(0, dtype=torch.int64)
    starts = torch.tensor([0, *query_lens]).cumsum(0).to(torch.int32)
    attention = AttentionBatch(
        query_start=starts,
        seq_lens=torch.tensor(list(seq_lens), dtype=torch.int32),
        block_table=table,
        slot_mapping=slots[index],
        max_query_len=max(query_lens, default=0),
        max_seq_len=max(seq_lens, default=0),
        host_query_lens=list(query_lens),
        host_seq_lens=list(seq_lens),
    )
    return PagedBatch(attention=attention, history=slots, query_index=index, num_blocks=num_blocks)
