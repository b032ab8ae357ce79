"""One rank, ready to allocate its cache: device opened, kernels bound, model built and loaded."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from allmetal.checkpoint import open_checkpoint
from allmetal.checkpoint.contract import Checkpoint
from allmetal.config import EngineConfig
from allmetal.executor.contract import LoadedModel, PooledFacts
from allmetal.platform import reference
from allmetal.platform.ahead import CompilesAhead
from allmetal.platform.contract import Device, OpenOptions, Platform
from allmetal.platform.plan import Plan
from allmetal.platform.select import Kernels, with_reference
from allmetal.runner.memory import check_room, kv_bytes, weight_bytes
from allmetal.runner.model_runner import ModelRunner
from allmetal.runner.pooling import PoolingRunner
from allmetal.runner.weights import WeightReader, dummy_readers, weight_format, weight_readers
from allmetal_models.base import CausalLM, Pools
from allmetal_models.context import BuildContext
from allmetal_models.pooling_config import pooling_config
from allmetal_models.registry import build_model


@dataclass(slots=True, kw_only=True)
class Rank:
    """What one device holds and runs.  `loaded` is what the engine is told of it."""

    device: Device
    kernels: Kernels
    model: CausalLM
    runner: ModelRunner | PoolingRunner
    loaded: LoadedModel


def open_device(config: EngineConfig, plan: Plan, platform: Platform) -> Device:
    return platform.open(plan.device, OpenOptions(threads=config.threads))


def build_rank(
    config: EngineConfig,
    plan: Plan,
    platform: Platform,
    device: Device,
    *,
    progress: bool = False,
) -> Rank:
    """Build the model and load its weights.  Raises ModelError or ConfigError with a hint, where
    memory is too small before anything is loaded."""
    offered = with_reference(platform.kernels(plan.device), reference.kernels())
    kernels = Kernels(offered, explicit=config.kernel)
    before = device.memory().free
    checkpoint = open_checkpoint(config)
    try:
        where = torch.device(device.torch_device)
        model = build_model(checkpoint.config, build_context(plan, where, kernels, checkpoint))
        needed = weight_bytes(plan, model.weight_shapes, expanded=not kernels.takes_quantised)
        check_room(plan, before, needed)
        runner = _runner(plan, platform, device, model, kernels)
        model.load_weights(_readers(checkpoint, plan, model, where, progress=progress))
    finally:
        checkpoint.close()
    device.synchronize()
    weights = _taken(before, device.memory().free, plan)
    loaded = LoadedModel(
        kv_specs=model.kv_specs,
        kv_bytes=kv_bytes(plan, before, weights, device.memory().free),
        weight_bytes=weights,
        vocab_size=model.vocab_size,
        pooling=_pooling(model),
    )
    return Rank(device=device, kernels=kernels, model=model, runner=runner, loaded=loaded)


def build_context(
    plan: Plan, device: torch.device, kernels: Kernels, checkpoint: Checkpoint
) -> BuildContext:
    dtype: torch.dtype = getattr(torch, plan.dtype)
    return BuildContext(
        kernels=kernels,
        dtype=dtype,
        device=device,
        kv_dtype=plan.kv_dtype,
        block_size=plan.block_size,
        weight_format=lambda name: weight_format(checkpoint.tensors[name]),
        # What a checkpoint has left dense stays so.
        quantization=None if plan.model.quantization else plan.quantization,
        max_model_len=plan.max_model_len,
        pooling=pooling_config(checkpoint.config, checkpoint.modules, plan.model.task),
    )


def _runner(
    plan: Plan, platform: Platform, device: Device, model: CausalLM, kernels: Kernels
) -> ModelRunner | PoolingRunner:
    if isinstance(model, Pools) and model.pooler is not None:
        return PoolingRunner(plan, device, model, model.pooler)
    ahead = platform.compile_ahead if isinstance(platform, CompilesAhead) else None
    return ModelRunner(plan, device, model, kernels, compile_ahead=ahead)


def _pooling(model: CausalLM) -> PooledFacts | None:
    if not isinstance(model, Pools) or model.pooler is None:
        return None
    return PooledFacts(size=model.pooler.size, whole_texts=model.pooler.whole)


def _readers(
    checkpoint: Checkpoint, plan: Plan, model: CausalLM, where: torch.device, *, progress: bool
) -> Iterable[tuple[str, WeightReader]]:
    if checkpoint.format == "dummy":
        return dummy_readers(model.weight_shapes, dtype=plan.dtype, device=where)
    return weight_readers(checkpoint, progress=progress)


def _taken(before: int, after: int, plan: Plan) -> int:
    """Bytes the weights took.  Where other programs gave memory back meanwhile, and the measure
    says less than half of what the checkpoint holds, that counts instead."""
    measured, stored = before - after, plan.model.parameter_bytes
    return measured if measured > stored // 2 else stored
