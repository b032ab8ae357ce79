"""All steps a runner will take, run once so that their kernels can be compiled side by side.

A platform that compiles its kernels when they are first launched learns from this which ones there
will be.  Only the null slots and the null block are touched.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from allmetal.executor.contract import SequenceStart, StepPlan
from allmetal.platform.contract import Graph
from allmetal.platform.plan import Plan
from allmetal.request import SamplingParams
from allmetal.runner.graphs import DecodeGraphs, MixedGraphs
from allmetal.runner.inputs import InputBuilder
from allmetal_models.base import CausalLM

log = logging.getLogger(__name__)


class _Nothing:
    def replay(self) -> None: ...


class _Unrecorded:
    """Records nothing: what is to be recorded was run already, to see what it launches."""

    computes = False

    def capture(self, run: Callable[[], object]) -> Graph:
        return _Nothing()


def rehearse(
    plan: Plan,
    model: CausalLM,
    inputs: InputBuilder,
    decode: DecodeGraphs,
    mixed: MixedGraphs,
) -> None:
    """Two steps with the longest prompts, which are launched by hand, and of those that are
    recorded some of each ladder."""
    longest = min(plan.max_num_batched_tokens, plan.max_model_len) - 1
    steps = [[longest]] if plan.max_num_seqs < 2 else [[longest], [1, longest]]
    for counts in steps:
        batch, _ = inputs.build(_first_step(counts))
        model.logits(model.forward(batch)[:1])
    problems: list[str | None] = []
    if plan.graph_sizes:
        problems.append(decode.record(_Unrecorded(), _some(plan.graph_sizes)))
    if plan.graph_tokens:
        problems.append(mixed.record(_Unrecorded(), _some(plan.graph_tokens)))
    if problem := "; ".join(filter(None, problems)):
        log.info("some kernels are compiled when they are first used: %s", problem)


def _some(sizes: Sequence[int]) -> list[int]:
    """Those with one or two bits set, and the largest: kernels differ by magnitude."""
    return [size for size in sizes if size.bit_count() <= 2 or size == max(sizes)]


def _first_step(counts: Sequence[int]) -> StepPlan:
    """Of new sequences with so many tokens, in slots whose next sequence starts anew."""
    starts = [
        SequenceStart(
            slot=slot,
            token_ids=[0] * count,
            num_prompt_tokens=count,
            sampling=SamplingParams(temperature=0.0),
            stop_token_ids=(),
            seed=0,
        )
        for slot, count in enumerate(counts)
    ]
    return StepPlan(
        step_id=0,
        starts=starts,
        slots=[start.slot for start in starts],
        num_scheduled=list(counts),
        num_computed=[0] * len(counts),
        samples=[True] * len(counts),
        new_blocks=[],
        num_tokens=sum(counts),
    )
