"""What the platform says of itself and of problems, where nothing of the vendor is installed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from allmetal.platform.capabilities import FEATURES
from allmetal.platform.contract import (
    AnyKernel,
    DeviceInfo,
    ModelFacts,
    Native,
    Spec,
    Supported,
    Unsupported,
)
from allmetal.platform.features import features_of
from allmetal.platform.specs import (
    AttentionInputSpec,
    AttentionSpec,
    DenseWeight,
    Float8Weight,
    GatedActivationSpec,
    IntWeight,
    LinearSpec,
    MoESpec,
    RMSNormSpec,
    Routing,
)
from allmetal.testing.conformance.problems import SPECS
from allmetal_ascend import AscendPlatform
from allmetal_ascend.advice import advise

A2, A3, INFERENCE, UNKNOWN = (
    DeviceInfo(index=0, name=f"Ascend {arch}", total_memory=0, arch=arch)
    for arch in ("910B", "910_93", "310P", "950")
)
ATTENTION = AttentionSpec(
    dtype="bfloat16",
    kv_dtype="bfloat16",
    num_heads=32,
    num_kv_heads=8,
    head_dim=128,
    block_size=128,
    scale=128**-0.5,
)
INPUT = AttentionInputSpec(
    dtype="bfloat16",
    kv_dtype="bfloat16",
    num_heads=32,
    num_kv_heads=8,
    head_dim=128,
    block_size=128,
    kv_layout="split_nhd",
    rotary_dim=128,
)
LINEAR = LinearSpec(
    dtype="bfloat16",
    in_features=64,
    out_features=48,
    bias=False,
    weight=IntWeight(act_dtype="int8"),
)
DENSE = DenseWeight(dtype="bfloat16")
MOE = MoESpec(
    dtype="bfloat16",
    num_experts=8,
    hidden_size=64,
    intermediate_size=32,
    activation="silu",
    routing=Routing(top_k=2),
    gate_up=DENSE,
    down=DENSE,
)
NORM = RMSNormSpec(dtype="bfloat16", dim=64, eps=1e-6)
GATE = GatedActivationSpec(dtype="bfloat16", dim=64, activation="silu")
TAKEN: list[Spec] = [
    ATTENTION,
    replace(ATTENTION, head_dim=80, window=100),
    replace(ATTENTION, dtype="float16", kv_dtype="float16", block_size=512),
    INPUT,
    replace(INPUT, qk_norm="head", norm_offset=1.0, rotary_dim=64, interleaved=True),
    LINEAR,
    replace(LINEAR, weight=IntWeight(group_size=32)),
    replace(LINEAR, weight=DENSE, dtype="float32"),
    MOE,
    replace(MOE, gate_up=IntWeight(act_dtype="int8"), down=IntWeight(act_dtype="int8")),
    NORM,
    replace(NORM, offset=1.0, residual=True),
    GATE,
    replace(GATE, activation="gelu_tanh"),
]
REFUSED: list[tuple[Spec, str]] = [
    (replace(ATTENTION, dtype="float32", kv_dtype="float32"), "float16 or bfloat16, not float32"),
    (replace(ATTENTION, block_size=16), "block_size must be a multiple of 128"),
    (replace(ATTENTION, block_size=1024), "at most 512"),
    (replace(ATTENTION, head_dim=72), "head_dim must be a multiple of 16"),
    (replace(ATTENTION, head_dim=576), "at most 512"),
    (replace(ATTENTION, num_heads=128, num_kv_heads=1), "1 to 64 times"),
    (replace(ATTENTION, soft_cap=30.0), "soft_cap"),
    (replace(ATTENTION, sinks=True), "sinks"),
    (replace(ATTENTION, kv_dtype="float8_e4m3fn"), "kv_dtype must be bfloat16"),
    (replace(INPUT, kv_layout="nhd"), "kv_layout must be split_nhd"),
    (replace(INPUT, qk_norm="head", norm_offset=0.5), "norm_offset must be 0 or 1"),
    (replace(LINEAR, weight=Float8Weight()), "must be int"),
    (replace(LINEAR, weight=IntWeight(bits=4)), "bits must be 8"),
    (replace(LINEAR, weight=IntWeight(group_size=16)), "multiple of 32"),
    (replace(LINEAR, weight=IntWeight(group_size=32, act_dtype="int8")), "no groups"),
    (replace(LINEAR, dtype="float32"), "not float32"),
    (replace(LINEAR, out_features=151_936), "at most 65535"),
    (replace(MOE, down=IntWeight(act_dtype="int8")), "both int8"),
    (replace(MOE, activation="relu"), "activation must be"),
    (replace(NORM, offset=0.5), "offset must be 0 or 1"),
    (replace(GATE, activation="relu"), "silu or gelu"),
]


def answers(spec: Spec, device: DeviceInfo = A2) -> list[Supported | Unsupported]:
    kernels: list[AnyKernel] = list(AscendPlatform().kernels(device)[spec.family])
    return [kernel.supports(spec) for kernel in kernels]


@pytest.mark.parametrize("spec", TAKEN, ids=repr)
def test_problems_of_usual_models_are_taken(spec: Spec) -> None:
    assert any(isinstance(answer, Supported) for answer in answers(spec))


@pytest.mark.parametrize(("spec", "reason"), REFUSED, ids=repr)
def test_what_the_operators_do_not_take_is_refused_with_the_reason(spec: Spec, reason: str) -> None:
    refusals = [answer for answer in answers(spec) if isinstance(answer, Unsupported)]

    assert len(refusals) == len(answers(spec))
    assert any(reason in refusal.reason for refusal in refusals)


@pytest.mark.parametrize("device", [A2, A3, INFERENCE, UNKNOWN], ids=lambda d: d.arch)
def test_every_feature_is_answered_for_every_chip(device: DeviceInfo) -> None:
    table = AscendPlatform().capabilities(device)

    assert table.keys() <= set(FEATURES)
    assert {"graph_capture", "moe", "dtype.bfloat16", "quant.w8a8"} <= table.keys()


@pytest.mark.parametrize("device", [A2, A3, INFERENCE], ids=lambda d: d.arch)
def test_a_kernel_stands_behind_every_native_feature_that_problems_are_about(
    device: DeviceInfo,
) -> None:
    table = AscendPlatform().capabilities(device)
    mine = [
        replace(s, block_size=128) if isinstance(s, AttentionSpec) else s
        for s in [*SPECS, *TAKEN]
        if s.family in AscendPlatform().kernels(device)
    ]
    taken = {
        feature
        for spec in mine
        if any(isinstance(answer, Supported) for answer in answers(spec, device))
        for feature in features_of(spec)
    }
    claimed = {f for f in table if isinstance(table[f], Native)}
    about = {f for spec in mine for f in features_of(spec)}

    assert claimed & about <= taken


def test_the_older_chip_computes_no_bfloat16_and_has_no_fused_attention() -> None:
    (refusal,) = answers(replace(ATTENTION, dtype="float16", kv_dtype="float16"), INFERENCE)
    assert isinstance(refusal, Unsupported)
    assert "310P has no npu_fused_infer_attention_score" == refusal.reason
    assert all(isinstance(a, Unsupported) for a in answers(NORM, INFERENCE))
    assert isinstance(AscendPlatform().capabilities(INFERENCE)["graph_capture"], Unsupported)


@pytest.mark.parametrize(
    ("device", "dtype", "got"),
    [
        (A2, "bfloat16", "bfloat16"),
        (A2, "float16", "float16"),
        (A2, "float32", "bfloat16"),
        (INFERENCE, "bfloat16", "float16"),
    ],
)
def test_advice_has_pages_that_attention_takes_and_a_type_that_the_chip_computes(
    device: DeviceInfo, dtype: str, got: str
) -> None:
    model = ModelFacts(
        model_type="llama",
        dtype=dtype,
        num_layers=2,
        hidden_size=64,
        head_dim=16,
        vocab_size=1000,
        max_model_len=4096,
        parameter_bytes=1 << 20,
    )

    advice = advise(device, model)

    assert got == advice.dtype
    assert ("the checkpoint's own" == advice.dtype_reason) == (got == dtype)
    assert 128 == advice.block_size
    assert (() == advice.graph_sizes) == (device is INFERENCE)
