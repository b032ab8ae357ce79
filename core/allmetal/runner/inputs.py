"""From a step plan to what the model is given: built on the device, from the sequences' state.

The host sends one pack of integers a step and derives nothing token by token.

Legend: T tokens, B scheduled sequences, R of them that sample.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from itertools import accumulate, compress

import torch

from allmetal.executor.contract import StepPlan
from allmetal.platform.batch import Batch
from allmetal.runner.batches import HostNumbers, Places, batch_of
from allmetal.runner.state import SequenceState
from allmetal.runner.transfer import Uploader


@dataclass(slots=True, kw_only=True)
class SampleRows:
    """The sequences that get a token from this step.  `positions`: where that token will stand,
    which is also the number of tokens before it.  `hidden`: their rows among the T, None if all.

    Where lengths are padded rows of the padding slot follow, which get a token for nothing.
    """

    host_slots: list[int]
    host_positions: list[int]
    slots: torch.Tensor  # [R] int64
    positions: torch.Tensor  # [R] int64
    hidden: torch.Tensor | None  # [R] int64


@dataclass(slots=True, kw_only=True)
class StepInputs:
    """What a step needs beside its batch.  `samples` is None when no sequence gets a token."""

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

    def build(self, step: StepPlan) -> tuple[Batch, StepInputs]:
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
            sections.append(pack_samples(step, seq_lens, query_starts, words))
        if self._state.padding.static:
            self._state.update(step, self._uploader)
        else:
            sections += self._state.pack_updates(step, words)
        packed = list(self._uploader.send(words).split(sections))
        slots, lens, *rest = packed
        starts = self._ramp[: len(slots) + 1] if decode else rest.pop(0)
        rows = rest.pop(0).view(3, -1) if partial else None
        if not self._state.padding.static:
            self._state.apply_updates(step, rest)
        batch = self._batch(step, slots, lens, starts, seq_lens)
        samples = None
        if sampling:
            samples = sample_rows(step, seq_lens, slots, lens, starts, rows, decode)
        return batch, StepInputs(query_starts=query_starts, samples=samples)

    def _batch(
        self,
        step: StepPlan,
        slots: torch.Tensor,
        lens: torch.Tensor,
        starts: torch.Tensor,
        seq_lens: list[int],
    ) -> Batch:
        num_seqs, num_tokens = len(seq_lens), step.num_tokens
        decode = num_tokens == num_seqs
        longest = max(seq_lens)
        numbers = HostNumbers(
            max_query_len=max(step.num_scheduled),
            max_seq_len=longest,
            num_blocks=-(-longest // self._state.block_size),
            query_lens=step.num_scheduled,
            seq_lens=seq_lens,
        )
        if decode:
            rows, positions, token_slots = self._ramp[:num_seqs], lens - 1, slots
        else:
            ramp = self._ramp[:num_tokens]
            rows = torch.searchsorted(starts[1:], ramp, right=True)  # [T] of B
            positions = ramp + (lens - starts[1:]).index_select(0, rows)
            token_slots = slots.index_select(0, rows)
        query_start = self._ramp32[: num_seqs + 1] if decode else starts.to(torch.int32)
        places = Places(slots=slots, rows=rows, token_slots=token_slots, positions=positions)
        return batch_of(self._state, places, lens, query_start, numbers)


def padded_samples(
    step: StepPlan, seq_lens: list[int], query_starts: list[int], state: SequenceState
) -> tuple[array[int], list[int], list[int]]:
    """What `pack_samples` packs, of all sequences that sample and of padding behind them, with the
    slots and positions once more for the host."""
    words, padding = array("q"), state.padding
    ends = [end - 1 for end in query_starts[1:]]
    for column, filler in ((step.slots, state.padding_slot), (seq_lens, 1), (ends, 0)):
        length = padding.append(words, list(compress(column, step.samples)), filler)
    return words, words[:length].tolist(), words[length : 2 * length].tolist()


def pack_samples(
    step: StepPlan, seq_lens: list[int], query_starts: list[int], words: array[int]
) -> int:
    """Append slot, position and hidden row of each sampling sequence; returns how many words."""
    ends = [end - 1 for end in query_starts[1:]]
    before = len(words)
    for column in (step.slots, seq_lens, ends):
        words.extend(compress(column, step.samples))
    return len(words) - before


def sample_rows(
    step: StepPlan,
    seq_lens: list[int],
    slots: torch.Tensor,
    lens: torch.Tensor,
    starts: torch.Tensor,
    rows: torch.Tensor | None,
    decode: bool,
) -> SampleRows:
    """`rows` [3, R] is what `pack_samples` packed, None when every sequence samples."""
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
