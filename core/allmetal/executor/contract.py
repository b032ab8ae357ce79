"""Seam 1: between the engine, which knows requests, and the runner, which knows tensors.

Ints and bytes cross it, never tensors, so an executor may live in another process or machine.
Steps are executed in the order they are given: a later step may rely on every write of an earlier
one, and blocks freed after step N may be given away in step N + 1 while N still runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from allmetal.config import EngineConfig
from allmetal.platform.contract import Unsupported
from allmetal.platform.kv import CacheLayout, KVSpec
from allmetal.platform.plan import Decision, Plan
from allmetal.request import Logprobs, PoolingParams, SamplingParams


@dataclass(frozen=True, slots=True, kw_only=True)
class PooledFacts:
    """Of a model that makes vectors of texts: `size` values each.  `whole_texts`: all of a text
    must be in one step."""

    size: int
    whole_texts: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    """What the engine learns from loading: one KVSpec an attention layer; sizes in bytes.

    `pooling` None: the model continues texts.
    """

    kv_specs: tuple[KVSpec, ...]
    kv_bytes: int
    weight_bytes: int
    vocab_size: int
    pooling: PooledFacts | None = None


NO_TOKEN = -1
"""Of a row whose logits leave nothing to choose: all -inf, or not numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceStart:
    """A sequence takes a slot of the runner's state, with all its tokens known so far.

    After a preemption `token_ids` holds the prompt and what was generated before.
    """

    slot: int
    token_ids: list[int]
    num_prompt_tokens: int
    sampling: SamplingParams
    stop_token_ids: tuple[int, ...]  # end-of-sequence ids included; held back below min_tokens
    seed: int
    pooling: PoolingParams | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPlan:
    """One forward pass.  The lists of equal length run over the scheduled sequences.

    `num_computed`: tokens of the sequence that are in the cache before the step.
    `samples`: whether the sequence's last known token is in this step, so that a new one follows.
    `new_blocks`: (slot, group, index in the sequence's table, block ids from there on).
    `masked`: tokens are chosen only after `TakesMasks.mask` was called for this step.
    """

    step_id: int
    starts: list[SequenceStart]
    slots: list[int]
    num_scheduled: list[int]
    num_computed: list[int]
    samples: list[bool]
    new_blocks: list[tuple[int, int, int, list[int]]]
    num_tokens: int
    masked: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenMasks:
    """Which tokens the sequences of a step may get, those at `slots`; others may get any.

    `bits`: a row for each slot, of as many whole 8 bytes as the vocabulary has bits for; bit t % 8
    of byte t // 8 says whether token t may come.
    """

    step_id: int
    slots: list[int]
    bits: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOutput:
    """`token_ids`: one sampled token for each True of the plan's `samples`, in order; NO_TOKEN
    where none can be chosen, which ends that sequence with an error.

    `logprobs` runs beside `token_ids` (None where not asked for).  `prompt_logprobs`: slot ->
    one entry for each prompt position computed in this step from position 1 on (position p's
    entry is computed with token p - 1).  `pooled`, of a model that makes vectors, runs beside
    `token_ids` too, which mean nothing then: float32 values of this machine's byte order.
    """

    step_id: int
    token_ids: list[int]
    logprobs: list[Logprobs | None] | None = None
    prompt_logprobs: dict[int, list[Logprobs]] = field(default_factory=dict)
    pooled: list[bytes] | None = None


class StepFuture(Protocol):
    def result(self) -> StepOutput:
        """Wait for the step.  Raises what the step raised."""
        ...

    def done(self) -> bool: ...


class Executor(Protocol):
    """One model on one or many devices.  Made by a factory from a config; see `executor.local`."""

    def load(self) -> LoadedModel: ...
    def allocate(self, layout: CacheLayout) -> Sequence[Decision]:
        """Take the cache's memory and get ready for steps.  Returns what came out otherwise than
        planned."""
        ...

    def execute(self, step: StepPlan) -> StepFuture: ...
    def close(self) -> None: ...


@runtime_checkable
class GivesMemoryBack(Protocol):
    """Kept beside `Executor` by one that can do without its memory for a while."""

    def release(self, *, weights: bool) -> int | Unsupported:
        """Give back the cache and all that steps need, and with `weights` those too.

        No step is under way.  Returns the bytes that the device has more of now, or why not.
        """
        ...

    def restore(self, layout: CacheLayout) -> None:
        """As after `load` and `allocate`; the cache's content is lost.  Raises what they raise."""
        ...


@runtime_checkable
class TakesMasks(Protocol):
    """Kept beside `Executor` by one that can hold a step's choice of tokens back.

    Which tokens may come depends on the one before, which the step before has yet to bring: so a
    step is executed ahead as any other, and its masks come as soon as they are known, while it
    runs.  Without it no output can be constrained.
    """

    def mask(self, masks: TokenMasks) -> None:
        """Let the tokens of the last step executed, which is a masked one, be chosen.

        A result that is asked for before is that of no masks.
        """
        ...


@runtime_checkable
class BringsExecutor(Protocol):
    """Kept beside `Platform` by one that does not compute with eager torch.

    Where it has an executor for a model, its kernels are not asked; where not, the core runs the
    model with them.
    """

    def executor(self, config: EngineConfig, plan: Plan) -> Executor | Unsupported:
        """One that will run `plan`, made without touching the device, or why there is none."""
        ...
