"""Which kernels a model will run on, found out without loading it.

The model is built on torch's meta device, where tensors have shapes and no bytes, and the kernels
that its layers bind are noted down.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from allmetal.checkpoint.contract import Checkpoint
from allmetal.config import EngineConfig
from allmetal.platform import reference
from allmetal.platform.contract import Platform
from allmetal.platform.kv import KVSpec
from allmetal.platform.plan import Plan
from allmetal.platform.select import Choice, Kernels, with_reference
from allmetal.platform.specs import DecodeStateSpec, SamplingSpec
from allmetal.runner.memory import weight_bytes
from allmetal.runner.rank import build_context
from allmetal_models.registry import build_model


@dataclass(frozen=True, slots=True, kw_only=True)
class Foretold:
    """`weight_bytes`: what the weights will take, estimated where they change while loading."""

    choices: tuple[Choice, ...]
    kv_specs: tuple[KVSpec, ...]
    weight_bytes: int


def foretell(
    config: EngineConfig, plan: Plan, platform: Platform, checkpoint: Checkpoint
) -> Foretold:
    """Raises NoKernelError, or what a platform's kernels raise when they are built."""
    offered = with_reference(platform.kernels(plan.device), reference.kernels())
    kernels = Kernels(offered, explicit=config.kernel)
    context = build_context(plan, torch.device("meta"), kernels, checkpoint)
    model = build_model(checkpoint.config, context)
    kernels.choose(SamplingSpec(vocab_size=model.vocab_size))
    if plan.graph_sizes:
        kernels.choose(DecodeStateSpec(block_size=plan.block_size))
    return Foretold(
        choices=kernels.choices,
        kv_specs=model.kv_specs,
        weight_bytes=weight_bytes(plan, model.weight_shapes, expanded=not kernels.takes_quantised),
    )
