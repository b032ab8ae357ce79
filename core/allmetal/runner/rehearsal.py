"""All steps a runner will take, run with tensors that have shapes and no bytes.

A platform that compiles its kernels when they are first launched learns from this which ones there
will be, and can compile them side by side while weights are loaded.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import torch

from allmetal.cache.groups import layout_for
from allmetal.checkpoint.contract import Checkpoint
from allmetal.executor.contract import SequenceStart, StepPlan
from allmetal.platform.ahead import CompilesAhead
from allmetal.platform.contract import Advice, DeviceInfo, Memory, ModelFacts, Platform
from allmetal.platform.plan import Plan
from allmetal.platform.select import Kernels
from allmetal.platform.specs import DecodeStateSpec, SamplingSpec
from allmetal.request import SamplingParams
from allmetal.runner.caches import allocate_caches
from allmetal.runner.graphs import DecodeGraphs, MixedGraphs
from allmetal.runner.inputs import InputBuilder
from allmetal.runner.state import SequenceState
from allmetal.runner.transfer import Uploader
from allmetal.runner.weights import dummy_readers
from allmetal_models.base import CausalLM

log = logging.getLogger(__name__)

_META = torch.device("meta")
_CACHE = 1 << 42
"""Bytes of a cache that is not there: enough for any layout."""


class _Nowhere:
    """The device whose tensors have no bytes."""

    torch_device = "meta"
    asynchronous = False
    streams = None
    graphs = None
    communicator = None

    def __init__(self, info: DeviceInfo) -> None:
        self.info = info

    def memory(self) -> Memory:
        return Memory(free=_CACHE, total=_CACHE)

    def synchronize(self) -> None: ...
    def pin(self, x: torch.Tensor) -> torch.Tensor:
        return x

    def versions(self) -> dict[str, str]:
        return {}

    def advice(self, model: ModelFacts) -> Advice:
        return Advice()

    def close(self) -> None: ...


class _Unrecorded:
    """A recording of nothing, and the graph that it makes."""

    def capture(self, run: Callable[[], object]) -> _Unrecorded:
        return self

    def replay(self) -> None: ...


def compile_ahead(
    platform: Platform,
    plan: Plan,
    checkpoint: Checkpoint,
    build: Callable[[torch.device, Kernels], CausalLM],
    kernels: Kernels,
) -> None:
    """Let the platform compile what steps of `plan` will launch, if it does such things.

    `kernels` are bound anew, and `build` makes the model on a device with them.
    """
    if not isinstance(platform, CompilesAhead):
        return

    def all_steps() -> None:
        rehearse(plan, checkpoint, build(_META, kernels), kernels)

    try:
        platform.compile_ahead(all_steps)
    except Exception as error:  # whatever a kernel makes of a tensor without bytes
        log.info("kernels are compiled when they are first used: %s", error)
        log.debug("the rehearsal failed", exc_info=error)


@torch.inference_mode()
def rehearse(plan: Plan, checkpoint: Checkpoint, model: CausalLM, kernels: Kernels) -> None:
    """Recorded steps of a few sizes, and two that are launched by hand."""
    if any(info.is_blocks for info in checkpoint.tensors.values()):
        return  # made-up weights are dense
    model.load_weights(dummy_readers(model.weight_shapes, dtype=plan.dtype, device=_META))
    layout = layout_for(model.kv_specs, plan.block_size, _CACHE)
    model.bind_caches(*allocate_caches(layout, model.attention_ops, _META))
    state = SequenceState(
        num_slots=plan.max_num_seqs,
        max_model_len=plan.max_model_len,
        num_groups=len(layout.groups),
        block_size=layout.block_size,
        device=_META,
    )
    uploader = Uploader(_Nowhere(plan.device))
    inputs = InputBuilder(state, uploader, plan.max_num_batched_tokens)
    longest = min(plan.max_num_batched_tokens, plan.max_model_len) - 1
    for step in (_step(0, [1, longest]), _step(0, [longest])):
        batch, _ = inputs.build(step)
        model.logits(model.forward(batch)[:1])
    if not plan.graph_sizes:
        return
    decode = DecodeGraphs(
        model=model,
        state=state,
        decode_state=kernels.bind(DecodeStateSpec(block_size=plan.block_size)),
        sampling=kernels.bind(SamplingSpec(vocab_size=model.vocab_size)),
        uploader=uploader,
    )
    problems = [decode.record(_Unrecorded(), _some(plan.graph_sizes))]
    if plan.graph_tokens:
        mixed = MixedGraphs(model=model, state=state, uploader=uploader)
        problems.append(mixed.record(_Unrecorded(), _some(plan.graph_tokens)))
    if problem := "; ".join(filter(None, problems)):
        log.info("some kernels are compiled when they are first used: %s", problem)


def _some(sizes: Sequence[int]) -> list[int]:
    """Those with one or two bits set, and the largest: kernels differ by magnitude."""
    return [size for size in sizes if size.bit_count() <= 2 or size == max(sizes)]


def _step(slot: int, counts: Sequence[int]) -> StepPlan:
    """The first step of new sequences with so many tokens."""
    starts = [
        SequenceStart(
            slot=slot + index,
            token_ids=[0] * count,
            num_prompt_tokens=count,
            sampling=SamplingParams(temperature=0.0),
            stop_token_ids=(),
            seed=0,
        )
        for index, count in enumerate(counts)
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
