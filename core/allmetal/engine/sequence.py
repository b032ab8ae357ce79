"""One request while the engine has it."""

from __future__ import annotations

from dataclasses import dataclass, field

from allmetal.cache.manager import Tables
from allmetal.request import FinishReason, Logprobs, Request


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
    finish_reason: FinishReason | None = None
    prompt_logprobs: list[Logprobs | None] = field(default_factory=list)
    first_output_at: int = 0  # the prompt's length
    min_length: int = 0  # tokens in all below which no stop id ends it

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None

    @property
    def urgency(self) -> tuple[int, int]:
        """Smaller runs first."""
        return (self.request.priority, self.order)
