"""One request while the engine has it."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from allmetal.cache.manager import Tables
from allmetal.request import FinishReason, Logprobs, Request

if TYPE_CHECKING:
    from allmetal.engine.guides import Guide


@dataclass(slots=True, eq=False)
class Sequence:
    """Known tokens, and how far they are computed.

    Scheduling runs ahead of results: `num_tokens` counts the known `token_ids` and the
    `num_pending` sampled on the device whose ids have not come back yet; `num_computed` counts
    tokens whose step has been scheduled.
    """

    request: Request
    token_ids: list[int]
    tables: Tables
    order: int
    seed: int
    max_tokens: int  # of prompt and output together
    stop_ids: frozenset[int]
    slot: int = -1
    num_tokens: int = 0
    num_computed: int = 0
    num_pending: int = 0
    num_cached: int = 0
    arrived: float = field(default_factory=time.perf_counter)
    queue_s: float = -1.0  # from arrival to the first step; negative until then
    finish_reason: FinishReason | None = None
    prompt_logprobs: list[Logprobs | None] = field(default_factory=list)
    first_output_at: int = 0  # the prompt's length
    min_length: int = 0  # tokens in all below which no stop id ends it
    guide: Guide | None = None  # where its tokens are not free

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None

    @property
    def urgency(self) -> tuple[int, int]:
        """Smaller runs first."""
        return (self.request.priority, self.order)


def seed_of(engine_seed: int, order: int) -> int:
    """Splitmix64 of the engine's seed and the request's number, as a non-negative int64."""
    x = (engine_seed * 0x9E3779B97F4A7C15 + order + 1) & (2**64 - 1)
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & (2**64 - 1)
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & (2**64 - 1)
    return (x ^ (x >> 31)) >> 1
