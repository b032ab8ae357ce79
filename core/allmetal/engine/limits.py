"""The bounds an engine works in, and requests outside of them."""

from __future__ import annotations

from dataclasses import dataclass

from allmetal.config import EngineConfig, Policy
from allmetal.errors import BusyError, RequestError
from allmetal.executor.contract import LoadedModel
from allmetal.platform.plan import Plan
from allmetal.request import Request


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The bounds an engine works in."""

    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    block_size: int
    prefix_caching: bool = True
    policy: Policy = "fcfs"
    async_scheduling: bool = True
    seed: int = 0
    max_prompt_tokens: int | None = None
    max_waiting: int | None = None
    """Sequences; more are refused."""
    shrink_to_memory: bool = True
    """Lower `max_model_len` to what the cache holds instead of raising."""


def check_limits(request: Request, limits: Limits, model: LoadedModel, waiting: int) -> None:
    """Raises RequestError, or BusyError where `waiting` sequences are enough."""
    _check_task(request, model)
    most = len(request.prompt_token_ids)
    if limits.max_prompt_tokens is not None and most > limits.max_prompt_tokens:
        raise RequestError(
            f"the prompt has {most} tokens; {limits.max_prompt_tokens} are allowed here",
            hint="shorten the prompt, or start with a larger --max-prompt-tokens",
        )
    if limits.max_waiting is not None and waiting >= limits.max_waiting:
        raise BusyError(f"{waiting} sequences wait already", hint="ask again later")


def _check_task(request: Request, model: LoadedModel) -> None:
    if (request.pooling is None) == (model.pooling is None):
        return
    if model.pooling is None:
        raise RequestError(
            "this model was loaded to continue texts, not to make vectors of them",
            hint="start with --task embed, or take an embedding model",
        )
    raise RequestError(
        "this model makes vectors of texts and cannot continue them",
        hint="ask for embeddings, scores or labels",
    )


def limits_of(config: EngineConfig, plan: Plan) -> Limits:
    return Limits(
        max_model_len=plan.max_model_len,
        max_num_seqs=plan.max_num_seqs,
        max_num_batched_tokens=plan.max_num_batched_tokens,
        block_size=plan.block_size,
        prefix_caching=plan.prefix_caching,
        policy=config.scheduling_policy,
        async_scheduling=plan.async_scheduling,
        seed=config.seed,
        max_prompt_tokens=config.max_prompt_tokens,
        max_waiting=config.max_waiting,
        shrink_to_memory=config.max_model_len is None,
    )
