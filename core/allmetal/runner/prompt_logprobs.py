"""Log probabilities of prompt tokens, chunk by chunk.

The token at position p is judged by the hidden state of position p - 1, so a chunk's last hidden
state belongs to the first token of the next chunk, which the state already knows.
"""

from __future__ import annotations

import torch

from allmetal.executor.contract import SequenceStart, StepPlan
from allmetal.runner.inputs import StepInputs
from allmetal.runner.sampler.logprobs import RowLogprobs, row_logprobs
from allmetal.runner.state import SequenceState
from allmetal_models.base import CausalLM

MAX_LOGITS = 1 << 24
"""Logits held at once, 64 MiB of float32; a prompt's are made in parts of this size."""


class PromptLogprobs:
    def __init__(self, state: SequenceState, model: CausalLM) -> None:
        self._state = state
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
                logits = self._model.logits(hidden[begin : begin + size])
                target = computed + first + 1
                ids = self._state.tokens[slot, target : target + size].to(torch.int64)
                found.append((slot, row_logprobs(logits, ids, [count] * size)))
        return found
