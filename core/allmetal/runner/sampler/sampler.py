"""One token a row: edits to the logits, choice, log probabilities.

Rows that need nothing cost a greedy choice.  What a set of rows needs is worked out when the set
changes, not every step.

Legend: R rows, V vocabulary.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from functools import reduce
from operator import or_

import torch

from allmetal.executor.contract import NO_TOKEN, SequenceStart, TokenMasks
from allmetal.platform.specs import SamplingOp
from allmetal.runner.inputs import SampleRows
from allmetal.runner.sampler.constraints import (
    ConstraintSet,
    SlotConstraints,
    combine,
    slot_constraints,
)
from allmetal.runner.sampler.logprobs import RowLogprobs, row_logprobs
from allmetal.runner.sampler.masks import Masks
from allmetal.runner.sampler.params import EDITS, PENALTY, Need, Records, needs
from allmetal.runner.sampler.penalties import penalise
from allmetal.runner.sampler.random import uniform
from allmetal.runner.state import SequenceState
from allmetal.runner.transfer import Uploader


@dataclass(slots=True, kw_only=True)
class Sampled:
    """`token_ids` [R] int64, NO_TOKEN where the logits leave nothing to choose; `logprobs` of the
    rows `logprob_rows`, -1 for one that did not ask, None if no row asked."""

    token_ids: torch.Tensor
    logprobs: RowLogprobs | None = None
    logprob_rows: list[int] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class _Subset:
    """Some of the rows; `index` is None when it is all of them, of which -1 need not be."""

    host: list[int]
    index: torch.Tensor | None

    def of(self, x: torch.Tensor) -> torch.Tensor:
        return x if self.index is None else x.index_select(0, self.index)


@dataclass(slots=True, kw_only=True)
class _Penalties:
    host_rows: list[int]
    rows: torch.Tensor
    slots: torch.Tensor
    num_prompt: torch.Tensor
    repetition: torch.Tensor | None
    presence: torch.Tensor | None
    frequency: torch.Tensor | None


@dataclass(slots=True, kw_only=True)
class _Mix:
    """What one set of rows needs; good for as long as its sequences stay."""

    slots: list[int]
    need: int
    key: torch.Tensor | None = None
    temperature: torch.Tensor | None = None
    top_k: torch.Tensor | None = None
    top_p: torch.Tensor | None = None
    min_p: torch.Tensor | None = None
    penalties: _Penalties | None = None
    constraints: ConstraintSet | None = None
    logprobs: _Subset | None = None


class Sampler:
    """Knows what each slot's sequence asks for.  Not thread-safe; steps come in order."""

    def __init__(
        self, state: SequenceState, uploader: Uploader, op: SamplingOp, vocab_size: int
    ) -> None:
        self._state = state
        self._uploader = uploader
        self._op = op
        self._vocab_size = vocab_size
        self._needs = [0] * (state.num_slots + 1)  # the padding's never changes
        self._constraints: dict[int, SlotConstraints] = {}
        self._num_logprobs: dict[int, int] = {}
        self._mix = _Mix(slots=[], need=0)
        self._masks = Masks(uploader, vocab_size)

    def start(self, start: SequenceStart) -> None:
        """A sequence takes a slot; nothing of the one before is kept."""
        slot, need = start.slot, needs(start.sampling)
        self._mix = _Mix(slots=[], need=0)
        self._needs[slot] = need
        self._constraints.pop(slot, None)
        if need & Need.CONSTRAINT:
            self._constraints[slot] = slot_constraints(start, self._vocab_size, self._uploader)
        self._num_logprobs[slot] = start.sampling.logprobs or 0

    def needs(self, rows: SampleRows) -> int:
        """What any of the rows needs beyond the argmax of its logits: bits of `Need`."""
        return self._mix_of(rows).need

    def __call__(
        self, logits: torch.Tensor, rows: SampleRows, masks: TokenMasks | None = None
    ) -> Sampled:
        """logits [R, V] float32, which may be overwritten."""
        mix = self._mix_of(rows)
        need = mix.need
        masked = None if masks is None else self._masks.of(masks, rows)
        if not need:
            logits = logits if masked is None else masked.apply(logits)
            token_ids = self._op(logits, None, None, None, None, None)
            known = token_ids.clamp(0, self._vocab_size - 1)
            best = logits.gather(1, known[:, None])[:, 0]
            best = torch.where(known == token_ids, best, torch.nan)
            return Sampled(token_ids=_where_finite(best, token_ids))
        raw = None
        if mix.logprobs is not None:
            raw = mix.logprobs.of(logits)
            if raw is logits and (need != Need.LOGPROBS or masked is not None):
                raw = logits.clone()
        if masked is not None:
            logits = masked.apply(logits)
        if need & EDITS:
            logits = logits.contiguous()
            self._edit(logits, mix, rows)
        draws = None if mix.key is None else uniform(mix.key, rows.positions)
        best = logits.amax(-1)  # before the op, which may overwrite them
        drawn = self._op(logits, mix.temperature, mix.top_k, mix.top_p, mix.min_p, draws)
        token_ids = _where_finite(best, drawn)
        if raw is None or mix.logprobs is None:
            return Sampled(token_ids=token_ids)
        host = mix.logprobs.host
        counts = [self._num_logprobs[rows.host_slots[row]] if row >= 0 else 0 for row in host]
        chosen = mix.logprobs.of(token_ids).clamp(min=0)
        logprobs = row_logprobs(raw, chosen, counts, self._state.padding)
        return Sampled(token_ids=token_ids, logprobs=logprobs, logprob_rows=host)

    def _edit(self, logits: torch.Tensor, mix: _Mix, rows: SampleRows) -> None:
        """Constraints, then penalties, in place; other rows stay as they are."""
        if mix.constraints is not None:
            mix.constraints.apply(logits, self._state, rows.positions, rows.host_positions)
        if (penalties := mix.penalties) is None:
            return
        longest = max(rows.host_positions[row] for row in penalties.host_rows)
        longest = self._state.padding.length(longest, self._state.row_length)
        penalise(
            logits,
            penalties.rows,
            self._state.tokens[:, :longest].index_select(0, penalties.slots),
            rows.positions.index_select(0, penalties.rows),
            penalties.num_prompt,
            repetition=penalties.repetition,
            presence=penalties.presence,
            frequency=penalties.frequency,
        )

    # ---- what a set of rows needs ----------------------------------------------------------

    def _mix_of(self, rows: SampleRows) -> _Mix:
        if self._mix.slots != rows.host_slots:
            self._mix = self._new_mix(rows)
        return self._mix

    def _new_mix(self, rows: SampleRows) -> _Mix:
        slots = rows.host_slots
        need = reduce(or_, (self._needs[slot] for slot in slots), 0)
        mix = _Mix(slots=slots, need=need)
        if need & (Need.RANDOM | PENALTY):
            records = Records(self._state.records.index_select(0, rows.slots))
            if need & Need.RANDOM:
                self._note_random(mix, records)
            if need & PENALTY:
                mix.penalties = self._penalties(rows, records, need)
        if need & Need.CONSTRAINT:
            constrained = [
                (row, self._constraints[slot])
                for row, slot in enumerate(slots)
                if slot in self._constraints
            ]
            mix.constraints = combine(constrained, self._vocab_size, self._uploader)
        if need & Need.LOGPROBS:
            mix.logprobs = self._subset(slots, Need.LOGPROBS)
        return mix

    def _note_random(self, mix: _Mix, records: Records) -> None:
        mix.key = records.key
        mix.temperature = records.real("temperature").contiguous()
        if mix.need & Need.TOP_K:
            mix.top_k = records.integer("top_k").contiguous()
        if mix.need & Need.TOP_P:
            mix.top_p = records.real("top_p").contiguous()
        if mix.need & Need.MIN_P:
            mix.min_p = records.real("min_p").contiguous()

    def _penalties(self, rows: SampleRows, records: Records, need: int) -> _Penalties:
        host = self._rows_with(rows.host_slots, PENALTY)
        if self._state.padding.static:  # records of the others ask for nothing
            host = list(range(len(rows.host_slots)))
        index = self._uploader.send(array("q", host))
        mine = Records(records.words.index_select(0, index))
        after_output = bool(need & Need.OUTPUT_PENALTY)
        return _Penalties(
            host_rows=host,
            rows=index,
            slots=rows.slots.index_select(0, index),
            num_prompt=mine.integer("num_prompt"),
            repetition=mine.real("repetition") if need & Need.REPETITION else None,
            presence=mine.real("presence") if after_output else None,
            frequency=mine.real("frequency") if after_output else None,
        )

    def _subset(self, slots: list[int], need: int) -> _Subset:
        host = self._rows_with(slots, need)
        if self._state.padding.static:
            asked = set(host)
            all_rows = [row if row in asked else -1 for row in range(len(slots))]
            return _Subset(host=all_rows, index=None)
        everything = len(host) == len(slots)
        return _Subset(
            host=host, index=None if everything else self._uploader.send(array("q", host))
        )

    def _rows_with(self, slots: list[int], need: int) -> list[int]:
        """The rows with any of these needs."""
        return [row for row, slot in enumerate(slots) if self._needs[slot] & need]


def _where_finite(best: torch.Tensor, token_ids: torch.Tensor) -> torch.Tensor:
    """NO_TOKEN where a row's `best` logit is no finite number: what a kernel then makes of the row
    is no token, and may lie outside of the vocabulary."""
    return torch.where(best.isfinite(), token_ids, NO_TOKEN)
