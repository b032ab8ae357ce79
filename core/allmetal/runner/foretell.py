"""Which kernels a model will run on, found out without loading it.

The model is built on torch's meta device, where tensors have shapes and no bytes, and the kernels
that its layers bind are noted down.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

import torch

from allmetal.checkpoint.contract import Checkpoint
from allmetal.config import EngineConfig
from allmetal.platform import reference
from allmetal.platform.contract import Platform
from allmetal.platform.kv import DTYPE_BYTES, KVSpec
from allmetal.platform.plan import Plan
from allmetal.platform.select import Choice, Kernels, with_reference
from allmetal.platform.specs import DecodeStateSpec, SamplingSpec
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
        weight_bytes=_kept(plan, model.weight_shapes),
    )


def _kept(plan: Plan, shapes: Mapping[str, tuple[int, ...]]) -> int:
    """Blocks of a quantised checkpoint stay what they are; dense tensors take the plan's dtype, and
    matrices one byte a value and a scale a row where they are quantised while loading."""
    if plan.model.quantization is not None:
        return plan.model.parameter_bytes
    itemsize = DTYPE_BYTES[plan.dtype]
    total = 0
    for name, shape in shapes.items():
        shrinks = plan.quantization == "int8" and len(shape) == 2 and "embed" not in name
        total += prod(shape) + 4 * shape[0] if shrinks else prod(shape) * itemsize
    return total
