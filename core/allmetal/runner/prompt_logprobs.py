"""Log probabilities of prompt tokens, chunk by chunk.

The token at position p is judged by the hidden state of position p - 1, so a chunk's last hidden
state belongs to the first token of the next chunk, which the state already knows.
"""

from __future__ import annotations

from array import array

import torch

from allmetal.executor.contract import SequenceStart, StepPlan
from allmetal.runner.inputs import StepInputs
from allmetal.runner.sampler.logprobs import RowLogprobs, row_logprobs
from allmetal.runner.state import SequenceState
from allmetal.runner.transfer import Uploader
from allmetal_models.base import CausalLM

MAX_LOGITS = 1 << 24
"""Logits held at once, 64 MiB of float32; a prompt's are made in parts of this size."""


class PromptLogprobs:
    def __init__(self, state: SequenceState, model: CausalLM, uploader: Uploader) -> None:
        self._state = state
        self._uploader = uploader
        self._model = model
        self._asked: dict[int, tuple[int, int]] = {}  # slot -> (entries, prompt length)
        self._rows = max(1, MAX_LOGITS // model.vocab_size)

    def start(self, start: SequenceStart) -> None:
        """A sequence takes a slot."""
        self._asked.pop(start.slot, None)
        if start.sampling.prompt_logprobs is not None:
            self._asked[start.slot] = (start.sampling.prompt_logprobs, start.num_prompt_tokens)

    def __call__(
        self, step: StepPlan, inputs: StepInputs, hidden: torch.Tensor
    ) -> list[tuple[int, RowLogprobs]]:
        """(slot, rows of some positions in order) for what this step computed of prompts."""
        if not self._asked:
            return []
        found: list[tuple[int, RowLogprobs]] = []
        for index, slot in enumerate(step.slots):
            if slot not in self._asked:
                continue
            count, num_prompt = self._asked[slot]
            computed = step.num_computed[index]
            length = min(step.num_scheduled[index], num_prompt - 1 - computed)
            for first in range(0, max(length, 0), self._rows):
                size = min(self._rows, length - first)
                begin = inputs.query_starts[index] + first
                target = computed + first + 1
                rows, ids = self._rows_and_ids(hidden, begin, slot, target, size)
                logits = self._model.logits(rows)
                padding = self._state.padding
                found.append((slot, row_logprobs(logits, ids, [count] * size, padding)))
        return found

    def _rows_and_ids(
        self, hidden: torch.Tensor, begin: int, slot: int, target: int, size: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """`size` rows of `hidden` from `begin` on, and the slot's tokens from `target` on."""
        state = self._state
        if not state.padding.static:
            ids = state.tokens[slot, target : target + size].to(torch.int64)
            return hidden[begin : begin + size], ids
        words, place = array("q"), slot * state.row_length + target
        state.padding.append(words, range(begin, begin + size), begin)
        state.padding.append(words, range(place, place + size), place)
        rows, places = self._uploader.send(words).view(2, -1).unbind(0)
        ids = state.flat_tokens.index_select(0, places).to(torch.int64)
        return hidden.index_select(0, rows), ids
