"""From a step plan to what the model is given: built on the device, from the sequences' state.

The host sends one pack of integers a step and derives nothing token by token.

Legend: T tokens, B scheduled sequences, R of them that sample, G KV groups, P blocks in a row.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from itertools import accumulate, compress

import torch

from allmetal.executor.contract import StepPlan
from allmetal.platform.batch import AttentionBatch, Batch
from allmetal.runner.state import SequenceState
from allmetal.runner.transfer import Uploader


@dataclass(slots=True, kw_only=True)
class SampleRows:
    """The sequences that get a token from this step.  `positions`: where that token will stand,
    which is also the number of tokens before it.  `hidden`: their rows among the T, None if all.
    """

    host_slots: list[int]
    host_positions: list[int]
    slots: torch.Tensor  # [R] int64
    positions: torch.Tensor  # [R] int64
    hidden: torch.Tensor | None  # [R] int64


@dataclass(slots=True, kw_only=True)
class StepInputs:
    """A step on the device.  `samples` is None when no sequence gets a token."""

    batch: Batch
    query_starts: list[int]  # B + 1
    samples: SampleRows | None


class InputBuilder:
    """Applies a plan's changes to the state and makes the step's inputs from it."""

    def __init__(self, state: SequenceState, uploader: Uploader, max_tokens: int) -> None:
        device = state.tokens.device
        self._state = state
        self._uploader = uploader
        self._ramp = torch.arange(max(max_tokens, state.num_slots) + 1, device=device)
        self._ramp32 = self._ramp.to(torch.int32)

    def build(self, step: StepPlan) -> StepInputs:
        """Raises nothing for a valid plan and never waits for the device."""
        seq_lens = [c + n for c, n in zip(step.num_computed, step.num_scheduled, strict=True)]
        query_starts = list(accumulate(step.num_scheduled, initial=0))
        words = array("q", step.slots)
        words.fromlist(seq_lens)
        sections = [len(seq_lens), len(seq_lens)]
        decode = step.num_tokens == len(seq_lens)
        if not decode:
            words.fromlist(query_starts)
            sections.append(len(query_starts))
        sampling = sum(step.samples)
        partial = 0 < sampling < len(seq_lens)
        if partial:
            sections.append(self._pack_samples(step, seq_lens, query_starts, words))
        sections += self._state.pack_updates(step, words)
        packed = list(self._uploader.send(words).split(sections))
        slots, lens, *rest = packed
        starts = self._ramp[: len(slots) + 1] if decode else rest.pop(0)
        rows = rest.pop(0).view(3, -1) if partial else None
        self._state.apply_updates(step, rest)
        batch = self._batch(step, slots, lens, starts, seq_lens)
        samples = None
        if sampling:
            samples = _sample_rows(step, seq_lens, slots, lens, starts, rows, decode)
        return StepInputs(batch=batch, query_starts=query_starts, samples=samples)

    def _pack_samples(
        self, step: StepPlan, seq_lens: list[int], query_starts: list[int], words: array[int]
    ) -> int:
        """Append slot, position and hidden row of each sampling sequence."""
        ends = [end - 1 for end in query_starts[1:]]
        before = len(words)
        for column in (step.slots, seq_lens, ends):
            words.extend(compress(column, step.samples))
        return len(words) - before

    def _batch(
        self,
        step: StepPlan,
        slots: torch.Tensor,
        lens: torch.Tensor,
        starts: torch.Tensor,
        seq_lens: list[int],
    ) -> Batch:
        state = self._state
        num_seqs, num_tokens = len(seq_lens), step.num_tokens
        decode = num_tokens == num_seqs
        longest = max(seq_lens)
        num_blocks = -(-longest // state.block_size)
        tables = state.tables[:, :, :num_blocks].index_select(1, slots)  # [G, B, P]
        if decode:
            positions = lens - 1
            token_slots = slots
            rows = self._ramp[:num_seqs]
        else:
            counts = starts.diff()
            rows = torch.repeat_interleave(counts, output_size=num_tokens)  # [T] of B
            ends = (lens - starts[1:]).index_select(0, rows)
            positions = self._ramp[:num_tokens] + ends
            token_slots = slots.index_select(0, rows)
        places = token_slots * state.row_length + positions
        token_ids = state.flat_tokens.index_select(0, places).to(torch.int64)
        blocks = positions // state.block_size
        owned = tables.view(state.num_groups, -1).index_select(1, rows * num_blocks + blocks)
        offsets = positions - blocks * state.block_size
        slot_mappings = owned.to(torch.int64) * state.block_size + offsets  # [G, T]
        lens32 = lens.to(torch.int32)
        query_start = self._ramp32[: num_seqs + 1] if decode else starts.to(torch.int32)
        longest_query = max(step.num_scheduled)
        groups = tuple(
            AttentionBatch(
                query_start=query_start,
                seq_lens=lens32,
                block_table=table,
                slot_mapping=mapping,
                max_query_len=longest_query,
                max_seq_len=longest,
                host_query_lens=step.num_scheduled,
                host_seq_lens=seq_lens,
            )
            for table, mapping in zip(tables.unbind(0), slot_mappings.unbind(0), strict=True)
        )
        return Batch(token_ids=token_ids, positions=positions, groups=groups)


def _sample_rows(
    step: StepPlan,
    seq_lens: list[int],
    slots: torch.Tensor,
    lens: torch.Tensor,
    starts: torch.Tensor,
    rows: torch.Tensor | None,
    decode: bool,
) -> SampleRows:
    """`rows` [3, R] is what `_pack_samples` packed, None when every sequence samples."""
    if rows is None:
        return SampleRows(
            host_slots=step.slots,
            host_positions=seq_lens,
            slots=slots,
            positions=lens,
            hidden=None if decode else starts[1:] - 1,
        )
    return SampleRows(
        host_slots=list(compress(step.slots, step.samples)),
        host_positions=list(compress(seq_lens, step.samples)),
        slots=rows[0],
        positions=rows[1],
        hidden=rows[2],
    )
