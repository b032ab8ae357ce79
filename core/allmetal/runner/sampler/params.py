"""Sampling parameters as the device holds them: one fixed-size record a slot."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import torch

from allmetal.executor.contract import SequenceStart
from allmetal.request import SamplingParams
from allmetal.runner.sampler.random import stream_key

RECORD = np.dtype(
    [
        ("key", "=i8"),
        ("temperature", "=f4"),
        ("top_k", "=i4"),
        ("top_p", "=f4"),
        ("min_p", "=f4"),
        ("repetition", "=f4"),
        ("presence", "=f4"),
        ("frequency", "=f4"),
        ("num_prompt", "=i4"),
    ]
)
RECORD_WORDS = RECORD.itemsize // 8
"""Length of a record in int64 words, the unit of uploads."""

_COLUMN = {name: field[1] // 4 for name, field in (RECORD.fields or {}).items()}


class Need:
    """Bits that say what a row needs beyond the argmax of its logits."""

    RANDOM: Final = 1
    TOP_K: Final = 2
    TOP_P: Final = 4
    MIN_P: Final = 8
    REPETITION: Final = 16
    OUTPUT_PENALTY: Final = 32
    CONSTRAINT: Final = 64
    LOGPROBS: Final = 128


PENALTY: Final = Need.REPETITION | Need.OUTPUT_PENALTY
EDITS: Final = PENALTY | Need.CONSTRAINT
"""Needs that change a row's logits before one is chosen."""
FILTERS: Final = Need.TOP_K | Need.TOP_P | Need.MIN_P
DRAWS: Final = Need.RANDOM | FILTERS
"""Needs that a row's record says all about."""


def needs(sampling: SamplingParams) -> int:
    """What rows of these parameters need.  A greedy row has no use for top-k and its like."""
    random = not sampling.greedy
    output_penalty = sampling.presence_penalty != 0.0 or sampling.frequency_penalty != 0.0
    constrained = (
        sampling.allowed_token_ids is not None
        or bool(sampling.bad_word_ids or sampling.logit_bias)
        or sampling.min_tokens > 0
    )
    asked = {
        Need.RANDOM: random,
        Need.TOP_K: random and sampling.top_k > 0,
        Need.TOP_P: random and sampling.top_p < 1.0,
        Need.MIN_P: random and sampling.min_p > 0.0,
        Need.REPETITION: sampling.repetition_penalty != 1.0,
        Need.OUTPUT_PENALTY: output_penalty,
        Need.CONSTRAINT: constrained,
        Need.LOGPROBS: sampling.logprobs is not None,
    }
    return sum(need for need, wanted in asked.items() if wanted)


def record(start: SequenceStart) -> bytes:
    """The record of a starting sequence, RECORD.itemsize bytes."""
    return _pack(start.sampling, stream_key(start.seed), start.num_prompt_tokens)


def no_record() -> list[int]:
    """The words of a record of no sequence: it draws nothing and changes nothing."""
    words: list[int] = np.frombuffer(_pack(SamplingParams(temperature=0.0), 0, 1), "=i8").tolist()
    return words


def _pack(sampling: SamplingParams, key: int, num_prompt: int) -> bytes:
    values = (
        key,
        sampling.temperature,
        min(sampling.top_k, 2**31 - 1),
        sampling.top_p,
        sampling.min_p,
        sampling.repetition_penalty,
        sampling.presence_penalty,
        sampling.frequency_penalty,
        num_prompt,
    )
    return np.array([values], dtype=RECORD).tobytes()


@dataclass(frozen=True, slots=True)
class Records:
    """Records of B rows, read by column; columns are views."""

    words: torch.Tensor  # [B, RECORD_WORDS] int64

    @property
    def key(self) -> torch.Tensor:
        return self.words[:, 0]

    def real(self, name: str) -> torch.Tensor:
        """Column `name` [B] float32."""
        return self.words.view(torch.float32)[:, _COLUMN[name]]

    def integer(self, name: str) -> torch.Tensor:
        """Column `name` [B] int32."""
        return self.words.view(torch.int32)[:, _COLUMN[name]]
