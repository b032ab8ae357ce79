"""The problems kernels are asked: small, odd, and one of each kind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, get_args

from allmetal.platform.contract import Spec
from allmetal.platform.features import REGISTRY, features_of
from allmetal.platform.reference.kernel import LAYOUTS
from allmetal.platform.specs import (
    Activation,
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
    Routing,
    SamplingSpec,
)

DTYPES = ("float32", "bfloat16", "float16")
NARROW = ("float8_e4m3fn", "float8_e5m2", "int8")
GGML_TYPES = ("Q4_0", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K")

_HEADS = AttentionSpec(
    dtype="float32",
    kv_dtype="float32",
    num_heads=8,
    num_kv_heads=2,
    head_dim=64,
    block_size=16,
    scale=0.125,
)


def _attention() -> list[AttentionSpec]:
    plain = [replace(_HEADS, dtype=d, kv_dtype=d) for d in DTYPES]
    one = plain[1]
    return [
        *plain,
        *(replace(plain[0], head_dim=d, scale=d**-0.5) for d in (32, 80, 96, 128, 192, 256)),
        *(replace(one, head_dim=d, scale=d**-0.5) for d in (80, 128)),
        replace(plain[0], num_heads=5, num_kv_heads=5),
        replace(plain[0], num_heads=7, num_kv_heads=1),
        *(replace(p, block_size=b) for p in plain[:2] for b in (8, 32, 64)),
        *(replace(p, window=w) for p in plain[:2] for w in (1, 16, 24, 4096)),
        *(replace(p, soft_cap=5.0) for p in plain[:2]),
        *(replace(p, sinks=True) for p in plain[:2]),
        replace(one, window=24, soft_cap=5.0, head_dim=256, scale=0.0625),
        replace(one, window=24, sinks=True),
        # Some operators want pages of 128 tokens, and have another way for heads of 128 channels.
        *(replace(p, block_size=128) for p in plain[1:]),
        replace(one, block_size=128, head_dim=128, scale=128**-0.5),
        *(replace(one, block_size=128, window=w) for w in (1, 24)),
        replace(one, block_size=128, head_dim=128, scale=128**-0.5, window=24),
        *(replace(one, kv_dtype=kv) for kv in NARROW),
    ]


_INPUT = AttentionInputSpec(
    dtype="float32",
    kv_dtype="float32",
    num_heads=8,
    num_kv_heads=2,
    head_dim=64,
    block_size=16,
    kv_layout="nhd",
    rotary_dim=64,
)


def _attention_input() -> list[AttentionInputSpec]:
    layouts = [replace(_INPUT, kv_layout=layout) for layout in LAYOUTS]
    some = [replace(p, dtype=d, kv_dtype=d) for p in layouts for d in DTYPES]
    changes: list[dict[str, Any]] = [
        {"rotary_dim": 0},
        {"rotary_dim": 32},
        {"interleaved": True},
        {"interleaved": True, "rotary_dim": 32},
        {"qk_norm": "head"},
        {"qk_norm": "full"},
        {"qk_norm": "head", "norm_offset": 1.0, "head_dim": 80, "rotary_dim": 80},
        {"num_heads": 3, "num_kv_heads": 3, "head_dim": 32, "rotary_dim": 32},
        {"block_size": 8},
        {"block_size": 64, "dtype": "bfloat16", "kv_dtype": "bfloat16"},
        {"kv_dtype": "float8_e4m3fn"},
        {"kv_dtype": "float8_e5m2"},
    ]
    return [*some, *(replace(p, **c) for p in layouts for c in changes)]


def _encoder_attention() -> list[EncoderAttentionSpec]:
    plain = [
        EncoderAttentionSpec(dtype=dtype, num_heads=6, num_kv_heads=6, head_dim=32, scale=32**-0.5)
        for dtype in DTYPES
    ]
    return [
        *plain,
        *(replace(p, num_kv_heads=2, head_dim=80) for p in plain[:2]),
        *(replace(p, window=w) for p in plain[:1] for w in (1, 16)),
        replace(plain[1], num_heads=3, num_kv_heads=1, head_dim=128, window=40),
    ]


def _linear() -> list[LinearSpec]:
    sizes = ((64, 48), (96, 37), (256, 5))

    def of(dtype: str, weight: Any, size: tuple[int, int], bias: bool = False) -> LinearSpec:
        return LinearSpec(
            dtype=dtype, in_features=size[0], out_features=size[1], bias=bias, weight=weight
        )

    dense = [
        of(d, DenseWeight(dtype=d), s, b) for d in DTYPES for s in sizes for b in (False, True)
    ]
    ints = [
        of(d, IntWeight(bits=bits, group_size=group, act_dtype=act), sizes[0])
        for d in DTYPES[:2]
        for bits, group, act in (
            (8, 0, None),
            (8, 32, None),
            (4, 32, None),
            (8, 0, "int8"),
            (8, 32, "int8"),
        )
    ]
    gguf = [of(d, GGUFWeight(type=t), (256, 19)) for d in DTYPES[:2] for t in GGML_TYPES]
    floats = [
        of(d, Float8Weight(dtype=kind, act_dtype=act), sizes[0], act is None)
        for d in DTYPES
        for kind, act in (
            ("float8_e4m3fn", None),
            ("float8_e4m3fn", "float8_e4m3fn"),
            ("float8_e5m2", None),
        )
    ]
    floats += [
        of(d, Float8Weight(act_dtype=act, block=(128, 128)), size)
        for d in DTYPES[:2]
        for act in (None, "float8_e4m3fn")
        for size in ((512, 384), (160, 200))
    ]
    return [*dense, *ints, of("bfloat16", IntWeight(), sizes[2], True), *floats, *gguf]


def _norms() -> list[RMSNormSpec]:
    return [
        RMSNormSpec(
            dtype=dtype,
            dim=dim,
            eps=1e-6,
            offset=offset,
            residual=residual,
            cast_before_weight=cast,
        )
        for dtype in DTYPES
        for dim in (64, 37, 1152)
        for offset, cast in ((0.0, False), (0.0, True), (1.0, False))
        for residual in (False, True)
    ]


def _activations() -> list[GatedActivationSpec]:
    return [
        GatedActivationSpec(dtype=dtype, dim=dim, activation=activation)
        for dtype in DTYPES
        for dim in (33, 256)
        for activation in get_args(Activation)
    ]


def _moe() -> list[MoESpec]:
    plain = [
        MoESpec(
            dtype=dtype,
            num_experts=8,
            hidden_size=64,
            intermediate_size=48,
            activation="silu",
            routing=Routing(top_k=2),
            gate_up=DenseWeight(dtype=dtype),
            down=DenseWeight(dtype=dtype),
        )
        for dtype in DTYPES
    ]
    routings = (
        Routing(top_k=1, renormalize=False),
        Routing(top_k=8, renormalize=False),
        Routing(top_k=3, scoring="sigmoid", scale=2.5),
        Routing(top_k=3, scoring="sigmoid", correction=True, num_groups=4, top_groups=2, scale=1.5),
        Routing(top_k=2, num_groups=2, top_groups=1),
    )
    blocks = GGUFWeight(type="Q4_K"), GGUFWeight(type="Q6_K")
    return [
        *plain,
        *(replace(p, routing=r) for p in plain[:2] for r in routings),
        *(replace(p, hidden_size=80, intermediate_size=37, num_experts=5) for p in plain[:2]),
        replace(plain[1], num_experts=64, routing=Routing(top_k=6), intermediate_size=32),
        replace(plain[0], activation="gelu_tanh"),
        *(replace(p, gate_up=IntWeight(), down=IntWeight()) for p in plain[:2]),
        *(
            replace(p, hidden_size=256, intermediate_size=256, gate_up=blocks[0], down=blocks[1])
            for p in plain[:2]
        ),
    ]


ATTENTION = _attention()
ATTENTION_INPUT = _attention_input()
ENCODER_ATTENTION = _encoder_attention()
LINEAR = _linear()
MOE = _moe()
RMS_NORM = _norms()
GATED_ACTIVATION = _activations()
SAMPLING = [SamplingSpec(vocab_size=v) for v in (1, 17, 1000, 32003)]
DECODE_STATE = [DecodeStateSpec(block_size=size) for size in (1, 16, 24)]


def _tells(feature: str, spec: Spec) -> bool:
    """Whether taking `spec` is what a claim of `feature` means: of a dtype or a stored format,
    products."""
    if feature.startswith("dtype."):
        return isinstance(spec, LinearSpec) and isinstance(spec.weight, DenseWeight)
    if feature.startswith("quant."):
        return isinstance(spec, LinearSpec)
    return not feature.startswith("kv_dtype.") or isinstance(spec, AttentionSpec)


SPECS: Sequence[Spec] = [
    *ATTENTION,
    *ATTENTION_INPUT,
    *ENCODER_ATTENTION,
    *LINEAR,
    *MOE,
    *RMS_NORM,
    *GATED_ACTIVATION,
    *SAMPLING,
    *DECODE_STATE,
]

NATIVE_MEANS: Mapping[str, Sequence[Spec]] = {
    feature: specs
    for feature in REGISTRY
    if (specs := [spec for spec in SPECS if feature in features_of(spec) and _tells(feature, spec)])
}
"""Feature -> specs of which a native platform's own kernels take at least one."""
