"""What a rank's memory goes to: weights, a step, recorded steps, and the rest keys and values."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import torch

from allmetal.errors import ConfigError
from allmetal.platform.kv import DTYPE_BYTES
from allmetal.platform.plan import Plan

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


def weight_bytes(
    plan: Plan, shapes: Mapping[str, tuple[int, ...]], *, expanded: bool = False
) -> int:
    """A quantised checkpoint stays what it is, unless it is `expanded` while loading; dense tensors
    take the plan's dtype, and matrices one byte a value and a scale a row where they are quantised
    while loading."""
    if plan.model.quantization is not None and not expanded:
        return plan.model.parameter_bytes
    itemsize = DTYPE_BYTES[plan.dtype]
    total = 0
    for name, shape in shapes.items():
        shrinks = plan.quantization is not None and plan.model.quantization is None
        shrinks = shrinks and len(shape) == 2 and "embed" not in name
        total += prod(shape) + 4 * shape[0] if shrinks else prod(shape) * itemsize
    return total


def check_room(plan: Plan, free: int, weights: int) -> None:
    """Raises ConfigError where `weights` bytes, or what must stand beside them, will not fit into
    the `free` ones of the plan's device."""
    gib = float(1 << 30)
    if weights > free:
        kind = plan.model.quantization or plan.quantization or plan.dtype
        raise ConfigError(
            f"the model's weights take {weights / gib:.2f} GiB in {kind},"
            f" and {plan.device.name} has {free / gib:.2f} GiB free",
            hint="a smaller or a quantised model, a device with more memory, or end what else uses"
            " this one",
        )
    kv_bytes(plan, free, weights, free - weights)


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
