"""What the steps of usual models launch, as problems for a compiler: their values are zeros."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, get_args

import torch

from allmetal.platform.contract import AnyKernel, Spec, Supported
from allmetal.platform.specs import (
    Activation,
    AttentionInputSpec,
    AttentionSpec,
    DecodeStateSpec,
    DenseWeight,
    GatedActivationSpec,
    IntWeight,
    LinearSpec,
    MoESpec,
    RMSNormSpec,
    Routing,
    SamplingSpec,
)
from allmetal.testing.batches import paged_batch

DTYPE = "bfloat16"
DENSE = DenseWeight(dtype=DTYPE)
LLAMA = AttentionSpec(
    dtype=DTYPE,
    kv_dtype=DTYPE,
    num_heads=32,
    num_kv_heads=8,
    head_dim=128,
    block_size=16,
    scale=128**-0.5,
)
ATTENTIONS = [
    LLAMA,
    replace(LLAMA, head_dim=64),
    replace(LLAMA, head_dim=256, num_heads=8, num_kv_heads=4, window=512, soft_cap=50.0),
    replace(LLAMA, head_dim=64, num_heads=64, window=128, sinks=True),
    replace(LLAMA, head_dim=512, num_heads=16, num_kv_heads=2),
    replace(LLAMA, block_size=64),
    replace(LLAMA, kv_dtype="float8_e4m3fn"),
]
INPUTS = [
    AttentionInputSpec(
        dtype=DTYPE,
        kv_dtype=DTYPE,
        num_heads=32,
        num_kv_heads=8,
        head_dim=128,
        block_size=16,
        kv_layout="nhd",
        rotary_dim=128,
        qk_norm=norm,
        interleaved=interleaved,
    )
    for norm, interleaved in (("none", False), ("head", False), ("full", False), ("none", True))
]
INPUTS.append(replace(INPUTS[0], kv_dtype="float8_e4m3fn"))
NORMS = [RMSNormSpec(dtype=DTYPE, dim=dim, eps=1e-6, residual=True) for dim in (1024, 4096, 8192)]
GATES = [GatedActivationSpec(dtype=DTYPE, dim=3072, activation=a) for a in get_args(Activation)]
PRODUCT = LinearSpec(dtype=DTYPE, in_features=4096, out_features=6144, bias=True, weight=DENSE)
INT_PRODUCTS = [
    LinearSpec(dtype=DTYPE, in_features=4096, out_features=1024, bias=False, weight=weight)
    for weight in (
        IntWeight(),
        IntWeight(group_size=128),
        IntWeight(bits=4, group_size=128),
        IntWeight(act_dtype="int8"),
    )
]
EXPERTS = MoESpec(
    dtype=DTYPE,
    num_experts=16,
    hidden_size=2048,
    intermediate_size=768,
    activation="silu",
    routing=Routing(top_k=8),
    gate_up=DENSE,
    down=DENSE,
)
SAMPLING = SamplingSpec(vocab_size=151_936)
REST: Sequence[Spec] = [*NORMS, *GATES, DecodeStateSpec(block_size=16), PRODUCT, SAMPLING]
EVERYTHING: Sequence[Spec] = [*ATTENTIONS, *INPUTS, *REST, *INT_PRODUCTS, EXPERTS]
HOT: Sequence[Spec] = [LLAMA, INPUTS[0], NORMS[1], GATES[0], replace(PRODUCT, bias=False), SAMPLING]
"""Those of a decode step of a usual model."""


def launch(
    spec: Spec, offered: Mapping[str, Sequence[AnyKernel]], *, decoding: bool = False
) -> str:
    """As many tokens as make a kernel of the first that takes `spec` choose otherwise; of a decode
    step alone where so said.  Why none takes it, "" where one does."""
    refused = []
    for kernel in offered[spec.family]:
        answer = kernel.supports(spec)
        if isinstance(answer, Supported):
            _LAUNCHES[type(spec)](kernel.build(spec), spec, decoding)
            return ""
        refused.append(f"{kernel.name}: {answer.reason}")
    return "; ".join(refused)


def zeros(*shape: int, dtype: str = DTYPE) -> torch.Tensor:
    return torch.zeros(*shape, dtype=getattr(torch, dtype))


def _attention(op: Any, spec: AttentionSpec, decoding: bool) -> None:
    sinks = torch.zeros(spec.num_heads) if spec.sinks else None
    for lens in ([1, 1], [1, 300]):
        paged = paged_batch(lens, [400, 400], spec.block_size, generator=torch.Generator())
        cache = zeros(*op.cache_shape(paged.num_blocks), dtype=spec.kv_dtype)
        op(zeros(sum(lens), spec.num_heads, spec.head_dim), cache, paged.attention, sinks)


def _attention_input(op: Any, spec: AttentionInputSpec, decoding: bool) -> None:
    heads = spec.num_heads + 2 * spec.num_kv_heads
    shape = (32, 2, spec.block_size, spec.num_kv_heads, spec.head_dim)
    cache = zeros(*shape, dtype=spec.kv_dtype)
    each = {"none": 0, "head": 1, "full": spec.num_heads}[spec.qk_norm]
    weight = zeros(each * spec.head_dim) if each else None
    for num_tokens in (1, 300):
        at = torch.arange(num_tokens)
        turn = torch.zeros(300, spec.rotary_dim)
        op(zeros(num_tokens, heads * spec.head_dim), at, turn, cache, at, weight, weight)


def _norm(op: Any, spec: RMSNormSpec, decoding: bool) -> None:
    x = zeros(2, spec.dim)
    op(x, x[0], x)


def _gate(op: Any, spec: GatedActivationSpec, decoding: bool) -> None:
    op(zeros(2, 2 * spec.dim))


def _state(op: Any, spec: DecodeStateSpec, decoding: bool) -> None:
    words, tokens = torch.zeros(3, 2, dtype=torch.int64), torch.zeros(3, 4096, dtype=torch.int32)
    token_ids, *_ = op.read(words, tokens, tokens[None, :, :256].contiguous())
    op.write(words, tokens, token_ids)


def _linear(op: Any, spec: LinearSpec, decoding: bool) -> None:
    rows, columns = spec.out_features, spec.in_features
    if isinstance(spec.weight, IntWeight):
        scale = torch.ones(rows, columns // (spec.weight.group_size or columns))
        given = {"weight": zeros(rows, columns, dtype="int8"), "scale": scale}
        sizes = (1, 100, 400)
    else:
        given, sizes = {"weight": zeros(rows, columns)}, (1, 2)
    packed, bias = op.pack(given), zeros(rows) if spec.bias else None
    for num_tokens in sizes:
        op(zeros(num_tokens, columns), packed, bias)


def _sampling(op: Any, spec: SamplingSpec, decoding: bool) -> None:
    logits, ones = torch.zeros(2, spec.vocab_size), torch.ones(2)
    op(logits, ones, torch.ones(2, dtype=torch.int32), ones, ones, ones)
    if not decoding:
        op(logits, None, None, None, None, None)
        op(logits, ones, None, None, None, ones)
        op(logits, ones, None, None, ones, ones)


def _moe(op: Any, spec: MoESpec, decoding: bool) -> None:
    experts, hidden, inner = spec.num_experts, spec.hidden_size, spec.intermediate_size
    packed = op.pack(
        {"weight": zeros(experts, 2 * inner, hidden)}, {"weight": zeros(experts, hidden, inner)}
    )
    for num_tokens in (2, 100, 400):
        op(zeros(num_tokens, hidden), torch.zeros(num_tokens, experts), packed)


_LAUNCHES: Mapping[type[Spec], Callable[[Any, Any, bool], None]] = {
    AttentionSpec: _attention,
    AttentionInputSpec: _attention_input,
    RMSNormSpec: _norm,
    GatedActivationSpec: _gate,
    DecodeStateSpec: _state,
    LinearSpec: _linear,
    SamplingSpec: _sampling,
    MoESpec: _moe,
}
