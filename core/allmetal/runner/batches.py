"""From where a step's tokens stand to what the model is given, read from the sequences' state.

Legend: T tokens, B sequences, G KV groups, P blocks of a sequence.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from allmetal.platform.batch import AttentionBatch, Batch
from allmetal.runner.state import SequenceState


@dataclass(frozen=True, slots=True, kw_only=True)
class HostNumbers:
    """What the host knows of a batch; see AttentionBatch."""

    max_query_len: int
    max_seq_len: int
    num_blocks: int
    query_lens: Sequence[int]
    seq_lens: Sequence[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Where a batch's tokens stand: sequences by slot, tokens by sequence, slot and position."""

    slots: torch.Tensor  # [B] int64
    rows: torch.Tensor  # [T] int64, of B
    token_slots: torch.Tensor  # [T] int64
    positions: torch.Tensor  # [T] int64


def batch_of(
    state: SequenceState,
    places: Places,
    lens: torch.Tensor,
    query_start: torch.Tensor,
    numbers: HostNumbers,
) -> Batch:
    """lens [B] int64, query_start [B + 1] int32 -> what a model is given, read from the state."""
    num_blocks, positions = numbers.num_blocks, places.positions
    tables = state.tables[:, :, :num_blocks].index_select(1, places.slots)  # [G, B, P]
    at = places.token_slots * state.row_length + positions
    token_ids = state.flat_tokens.index_select(0, at).to(torch.int64)
    blocks = positions // state.block_size
    owners = places.rows * num_blocks + blocks
    owned = tables.flatten(1).index_select(1, owners)
    offsets = positions - blocks * state.block_size
    slot_mappings = owned.to(torch.int64) * state.block_size + offsets  # [G, T]
    lens32 = lens.to(torch.int32)
    groups = tuple(
        AttentionBatch(
            query_start=query_start,
            seq_lens=lens32,
            block_table=table,
            slot_mapping=mapping,
            max_query_len=numbers.max_query_len,
            max_seq_len=numbers.max_seq_len,
            host_query_lens=numbers.query_lens,
            host_seq_lens=numbers.seq_lens,
        )
        for table, mapping in zip(tables.unbind(0), slot_mappings.unbind(0), strict=True)
    )
    return Batch(
        token_ids=token_ids,
        positions=positions,
        groups=groups,
        query_start=query_start,
        host_query_lens=numbers.query_lens,
    )
