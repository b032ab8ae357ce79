"""One rank, ready to allocate its cache: device opened, kernels bound, model built and loaded."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from allmetal.checkpoint import open_checkpoint
from allmetal.checkpoint.contract import Checkpoint
from allmetal.config import EngineConfig
from allmetal.errors import ConfigError
from allmetal.executor.contract import LoadedModel
from allmetal.platform import reference
from allmetal.platform.contract import Device, OpenOptions, Platform
from allmetal.platform.plan import Plan
from allmetal.platform.select import Kernels, with_reference
from allmetal.runner.model_runner import ModelRunner
from allmetal.runner.weights import WeightReader, dummy_readers, weight_format, weight_readers
from allmetal_models.base import CausalLM
from allmetal_models.context import BuildContext
from allmetal_models.registry import build_model

ACTIVATION_WIDTH = 24
"""Values of the hidden size's width that a forward pass holds for each token at most: the stream,
its norm, queries, keys, values, and both halves of a wide MLP."""
LOGIT_COPIES = 4
"""The logits, their edited and their sorted copies, and a sum over them."""
LAUNCHES_OF_A_LAYER = 1 << 16
"""Bytes a device keeps for what it was told to launch: some ten kernels and their arguments.
Measured: 31 KiB."""
WORKSPACE = 160 << 20
"""Bytes that kernels take for their code and for themselves.  Measured: 140 MiB."""


@dataclass(slots=True, kw_only=True)
class Rank:
    """What one device holds and runs.  `loaded` is what the engine is told of it."""

    device: Device
    kernels: Kernels
    model: CausalLM
    runner: ModelRunner
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
    """Build the model and load its weights.  Raises ModelError or ConfigError with a hint."""
    offered = with_reference(platform.kernels(plan.device), reference.kernels())
    kernels = Kernels(offered, explicit=config.kernel)
    before = device.memory().free
    checkpoint = open_checkpoint(config)
    try:
        where = torch.device(device.torch_device)
        model = build_model(checkpoint.config, build_context(plan, where, kernels, checkpoint))
        runner = ModelRunner(plan, device, model, kernels)
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
        quantization=plan.quantization,
        max_model_len=plan.max_model_len,
    )


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


def kv_bytes(plan: Plan, free_before: int, weights: int, free_now: int) -> int:
    """What keys and values may take: the plan's bytes, or its share of what was free before
    loading, less weights and a step's own needs.  ConfigError if nothing is left."""
    gib = float(1 << 30)
    if plan.kv_cache_memory is not None:
        if plan.kv_cache_memory > free_now:
            raise ConfigError(
                f"{plan.kv_cache_memory / gib:.2f} GiB of cache memory were asked for, and"
                f" {free_now / gib:.2f} GiB are free after loading the model",
                hint=f"--kv-cache-memory {int(free_now * 0.9)}, or less",
            )
        return plan.kv_cache_memory
    step, graphs = step_bytes(plan), graph_bytes(plan)
    share = int(plan.memory_fraction * free_before)
    left = min(share - weights, free_now) - step - graphs
    if left <= 0:
        raise ConfigError(
            f"no memory is left for keys and values: {plan.memory_fraction:.0%} of"
            f" {free_before / gib:.2f} GiB, less {weights / gib:.2f} GiB of weights and"
            f" {step / gib:.2f} GiB that a step needs and {graphs / gib:.2f} GiB for recorded ones",
            hint="a smaller or quantised model, a larger --memory-fraction, fewer"
            " --max-num-seqs, or smaller --max-num-batched-tokens",
        )
    return left


def step_bytes(plan: Plan) -> int:
    """Bytes beside weights and cache, estimated from above: activations of the largest step,
    logits, and the sequences' state."""
    itemsize: int = getattr(torch, plan.dtype).itemsize
    model = plan.model
    activations = plan.max_num_batched_tokens * model.hidden_size * ACTIVATION_WIDTH * itemsize
    rows = min(plan.max_num_seqs, plan.max_num_batched_tokens)
    logits = rows * model.vocab_size * 4 * LOGIT_COPIES
    state = plan.max_num_seqs * plan.max_model_len * 5
    return activations + logits + state


def graph_bytes(plan: Plan) -> int:
    """Bytes that recorded steps keep, estimated from above: what the largest makes, in which the
    others find room, its logits and hidden states, and the launches of each."""
    if not plan.graph_sizes:
        return 0
    itemsize: int = getattr(torch, plan.dtype).itemsize
    model, rows, tokens = plan.model, max(plan.graph_sizes), max(plan.graph_tokens, default=0)
    decode = rows * (model.hidden_size * ACTIVATION_WIDTH + model.vocab_size)
    mixed = tokens * model.hidden_size * ACTIVATION_WIDTH
    kept = rows * model.vocab_size * 4 + tokens * model.hidden_size * itemsize
    tables = (plan.max_num_seqs + 1) * (plan.max_model_len // plan.block_size + 1) * 4
    graphs = len(plan.graph_sizes) + len(plan.graph_tokens)
    launches = graphs * model.num_layers * LAUNCHES_OF_A_LAYER
    return max(decode, mixed) * itemsize + kept + tables + launches + WORKSPACE
