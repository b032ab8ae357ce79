"""Problems in few words, for people.  The spec itself says all."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import assert_never

from allmetal.platform.specs import (
    AttentionInputSpec,
    AttentionSpec,
    DecodeStateSpec,
    DenseWeight,
    EncoderAttentionSpec,
    Float8Weight,
    GatedActivationSpec,
    GGUFWeight,
    IntWeight,
    LinearSpec,
    MoESpec,
    RMSNormSpec,
    SamplingSpec,
    WeightFormat,
)


def problem(spec: object) -> str:
    """What tells a spec from others of its family."""
    match spec:
        case AttentionSpec():
            return _join(
                _heads(spec),
                f"window {spec.window}" if spec.window is not None else "every token",
                f"soft cap {spec.soft_cap:g}" if spec.soft_cap is not None else "",
                "sinks" if spec.sinks else "",
            )
        case AttentionInputSpec():
            return _join(
                _heads(spec),
                _rope(spec),
                {"none": "", "head": "norm of each head", "full": "norm of all heads"}[
                    spec.qk_norm
                ],
                f"cache {spec.kv_layout}",
            )
        case EncoderAttentionSpec():
            heads = f"{spec.num_heads} heads on {spec.num_kv_heads} of {spec.head_dim}"
            window = f"window {spec.window}" if spec.window is not None else "every token"
            return _join(spec.dtype, heads, window)
        case LinearSpec():
            size = f"{spec.in_features} -> {spec.out_features}"
            return _join(size, weight(spec.weight), "bias" if spec.bias else "")
        case RMSNormSpec():
            return _join(spec.dtype, f"of {spec.dim}", "with residual" if spec.residual else "")
        case GatedActivationSpec():
            return _join(spec.dtype, f"{spec.activation} of {spec.dim}")
        case MoESpec():
            experts = f"{spec.routing.top_k} of {spec.num_experts} experts"
            size = f"{spec.hidden_size} -> {spec.intermediate_size}"
            stored = dict.fromkeys((weight(spec.gate_up), weight(spec.down)))
            return _join(experts, size, *stored)
        case SamplingSpec():
            return f"vocabulary of {spec.vocab_size}"
        case DecodeStateSpec():
            return f"blocks of {spec.block_size}"
        case _:
            return _any(spec)


def weight(format: WeightFormat) -> str:
    match format:
        case DenseWeight(dtype=dtype):
            return dtype
        case GGUFWeight(type=ggml_type):
            return ggml_type
        case IntWeight(bits=bits, group_size=group, act_dtype=act):
            scales = f"a scale for {group}" if group else "a scale a row"
            return _join(f"int{bits}", scales, f"activations {act}" if act else "")
        case Float8Weight(dtype=dtype, act_dtype=act, block=block):
            scales = "a scale a row" if block is None else "a scale for {} x {}".format(*block)
            return _join(dtype, scales, f"activations {act}" if act else "")
        case other:
            assert_never(other)


def _heads(spec: AttentionSpec | AttentionInputSpec) -> str:
    cache = f", cached as {spec.kv_dtype}" if spec.kv_dtype != spec.dtype else ""
    heads = f"{spec.num_heads} heads on {spec.num_kv_heads} of {spec.head_dim}"
    return f"{spec.dtype}{cache}, {heads}, blocks of {spec.block_size}"


def _rope(spec: AttentionInputSpec) -> str:
    if not spec.rotary_dim:
        return "no rotation"
    part = "" if spec.rotary_dim == spec.head_dim else f" of {spec.rotary_dim}"
    return f"rotation{part}" + (" in pairs" if spec.interleaved else "")


def _join(*words: str) -> str:
    return ", ".join(filter(None, words))


def _any(spec: object) -> str:
    """Of a family that has no words yet: what differs from its defaults."""
    if not is_dataclass(spec):
        return str(spec)
    said = []
    for field in fields(spec):
        value = getattr(spec, field.name)
        if value != field.default:
            said.append(f"{field.name}={_any(value) if is_dataclass(value) else value}")
    return ", ".join(said) or type(spec).__name__
