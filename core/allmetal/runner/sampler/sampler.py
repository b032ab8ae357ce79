"""One token a row: edits to the logits, choice, log probabilities.

Rows that need nothing cost an argmax.  What a set of rows needs is worked out when the set
changes, not every step.

Legend: R rows, V vocabulary.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from functools import reduce
from operator import or_

import torch

from allmetal.executor.contract import SequenceStart
from allmetal.platform.specs import SamplingOp
from allmetal.runner.inputs import SampleRows
from allmetal.runner.sampler.constraints import (
    ConstraintSet,
    SlotConstraints,
    combine,
    slot_constraints,
)
from allmetal.runner.sampler.logprobs import RowLogprobs, row_logprobs
from allmetal.runner.sampler.params import CONSTRAINT, EDITS, PENALTY, Need, Records, needs
from allmetal.runner.sampler.penalties import penalise
from allmetal.runner.sampler.random import uniform
from allmetal.runner.state import SequenceState
from allmetal.runner.transfer import Uploader


@dataclass(slots=True, kw_only=True)
class Sampled:
    """`token_ids` [R] int64; `logprobs` of the rows `logprob_rows`, None if no row asked."""

    token_ids: torch.Tensor
    logprobs: RowLogprobs | None = None
    logprob_rows: list[int] | None = None


@dataclass(slots=True, kw_only=True)
class _Subset:
    """Some of the rows; `index` is None when it is all of them."""

    host: list[int]
    index: torch.Tensor | None

    def of(self, x: torch.Tensor) -> torch.Tensor:
        return x if self.index is None else x.index_select(0, self.index)


@dataclass(slots=True, kw_only=True)
class _Penalties:
    rows: _Subset
    slots: torch.Tensor
    num_prompt: torch.Tensor
    repetition: torch.Tensor | None
    presence: torch.Tensor | None
    frequency: torch.Tensor | None


@dataclass(slots=True, kw_only=True)
class _Mix:
    """What one set of rows needs; good for as long as its sequences stay."""

    slots: list[int]
    need: Need
    records: Records | None = None
    penalties: _Penalties | None = None
    constraints: ConstraintSet | None = None
    logprobs: _Subset | None = None

    def option(self, need: Need, name: str) -> torch.Tensor | None:
        if self.records is None or not self.need & need:
            return None
        return self.records.real(name).contiguous()


class Sampler:
    def __init__(
        self, state: SequenceState, uploader: Uploader, op: SamplingOp, vocab_size: int
    ) -> None:
        self._state = state
        self._uploader = uploader
        self._op = op
        self._vocab_size = vocab_size
        self._needs = [Need(0)] * state.num_slots
        self._constraints: dict[int, SlotConstraints] = {}
        self._num_logprobs: dict[int, int] = {}
        self._mix: _Mix | None = None
