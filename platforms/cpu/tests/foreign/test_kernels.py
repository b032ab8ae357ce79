"""The portable C++ kernels on Arm, RISC-V and POWER, held against float64 by an emulator."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from allmetal.platform import reference
from allmetal.platform.specs import (
    AttentionInputSpec,
    AttentionSpec,
    DenseWeight,
    GatedActivationSpec,
    GGUFWeight,
    IntWeight,
    LinearSpec,
    RMSNormSpec,
    SamplingSpec,
)
from allmetal.quant.ggml import BLOCKS, row_bytes
from allmetal.testing.batches import paged_batch
from allmetal_cpu.native import attention, attention_input, gated_activation, linear, rms_norm
from allmetal_cpu.native import sampling as native_sampling

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def exact(family: str, spec: Any) -> Any:
    (kernel,) = reference.kernels()[family]
    wide = {name: "float64" for name in ("dtype", "kv_dtype") if hasattr(spec, name)}
    return kernel.build(replace(spec, **wide))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("num_tokens", [1, 5, 33])
def test_dense_and_int8_linear(dtype, num_tokens, generator, near, foreign) -> None:  # type: ignore[no-untyped-def]
    type_ = getattr(torch, dtype)
    for group in (None, 0, 16):
        weight = DenseWeight(dtype=dtype) if group is None else IntWeight(group_size=group)
        spec = LinearSpec(dtype=dtype, in_features=208, out_features=37, bias=True, weight=weight)
        x = torch.randn(num_tokens, 208, generator=generator).to(type_)
        bias = torch.randn(37, generator=generator).to(type_)
        weights = {"weight": torch.randn(37, 208, generator=generator).to(type_)}
        if group is not None:
            values = torch.randint(-127, 128, (37, 208), generator=generator, dtype=torch.int8)
            scale = torch.rand(37, 208 // group if group else 1, generator=generator) * 0.01
            weights = {"weight": values, "scale": scale}
        op = linear.LINEAR.make(spec, foreign)
        wide = exact("linear", spec)
        expected = wide(x.double(), wide.pack(weights), bias.double())
        near(op(x, op.pack(weights), bias), expected)


@pytest.mark.parametrize("ggml_type", sorted(BLOCKS))
def test_ggml_blocks(ggml_type, generator, near, foreign) -> None:  # type: ignore[no-untyped-def]
    spec = LinearSpec(
        dtype="float32",
        in_features=512,
        out_features=19,
        bias=False,
        weight=GGUFWeight(type=ggml_type),
    )
    blocks = torch.randint(0, 256, (19, row_bytes(ggml_type, 512)), generator=generator)
    blocks = blocks.to(torch.uint8).view(19, -1, BLOCKS[ggml_type].nbytes)
    for at in _SCALES.get(ggml_type, (0,)):
        blocks[..., at : at + 2] = torch.tensor([0.0123], dtype=torch.float16).view(torch.uint8)
    op, wide = linear.LINEAR.make(spec, foreign), exact("linear", spec)
    weights = {"weight": blocks.flatten(1)}
    for num_tokens in (1, 9):
        x = torch.randn(num_tokens, 512, generator=generator)
        near(op(x, op.pack(weights), None), wide(x.double(), wide.pack(weights), None))


_SCALES = {"Q4_1": (0, 2), "Q5_1": (0, 2), "Q2_K": (80, 82), "Q3_K": (108,), "Q6_K": (208,)}
_SCALES |= {"Q4_K": (0, 2), "Q5_K": (0, 2)}
"""Where a block has halves that scale it, if not at its start: random ones would be infinite."""


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    "special", [{}, {"window": 7}, {"soft_cap": 2.0, "sinks": True}], ids=["plain", "window", "cap"]
)
def test_attention(dtype, special, generator, near, foreign) -> None:  # type: ignore[no-untyped-def]
    spec = AttentionSpec(
        dtype=dtype,
        kv_dtype=dtype,
        num_heads=6,
        num_kv_heads=2,
        head_dim=36,
        **{"block_size": 16, "scale": 0.17, **special},
    )
    type_ = getattr(torch, dtype)
    batch = paged_batch([1, 20, 3], [50, 20, 90], 16, generator=generator)
    keys, values = torch.randn(2, 160, 2, 36, generator=generator).to(type_)
    q = torch.randn(24, 6, 36, generator=generator).to(type_)
    sinks = torch.randn(6, generator=generator) if spec.sinks else None

    def run(op: Any, wide: torch.dtype) -> torch.Tensor:
        cache = torch.full(op.cache_shape(batch.num_blocks), float("nan"), dtype=wide)
        view = cache if op.kv_layout == "nhd" else cache.transpose(2, 3)
        block, offset = batch.history // 16, batch.history % 16
        view[block, 0, offset], view[block, 1, offset] = keys.to(wide), values.to(wide)
        batch.attention.memo.clear()
        return op(q.to(wide), cache, batch.attention, sinks)

    expected = run(exact("attention", spec), torch.float64)
    near(run(attention.ATTENTION.make(spec, foreign), type_), expected)


@pytest.mark.parametrize(
    "special",
    [{}, {"qk_norm": "head"}, {"qk_norm": "full", "interleaved": True, "rotary_dim": 20}],
    ids=["plain", "head", "full"],
)
def test_attention_input(special, generator, near, foreign) -> None:  # type: ignore[no-untyped-def]
    spec = AttentionInputSpec(
        dtype="float32",
        kv_dtype="float32",
        num_heads=4,
        num_kv_heads=2,
        **{"head_dim": 36, "block_size": 16, "kv_layout": "hnd", "rotary_dim": 36, **special},
    )
    qkv = torch.randn(11, 8 * 36, generator=generator)
    positions = torch.randint(0, 90, (11,), generator=generator)
    angles = torch.rand(90, spec.rotary_dim // 2, generator=generator) * 90
    cos_sin = torch.cat([angles.cos(), angles.sin()], -1)
    slots = torch.randperm(48, generator=generator)[:11]
    weights = [
        None
        if spec.qk_norm == "none"
        else torch.randn(36 * (heads if spec.qk_norm == "full" else 1), generator=generator)
        for heads in (4, 2)
    ]
    before = torch.randn(3, 2, 2, 16, 36, generator=generator)

    expected_cache, cache = before.double(), before.clone()
    wide = [None if w is None else w.double() for w in weights]
    op = exact("attention_input", spec)
    expected = op(qkv.double(), positions, cos_sin, expected_cache, slots, *wide)
    ours = attention_input.ATTENTION_INPUT.make(spec, foreign)
    near(ours(qkv, positions, cos_sin, cache, slots, *weights), expected)
    near(cache, expected_cache)


def test_norms_and_activations(generator, near, foreign) -> None:  # type: ignore[no-untyped-def]
    norm = RMSNormSpec(dtype="float32", dim=83, eps=1e-6, residual=True, offset=1.0)
    x, residual = torch.randn(2, 9, 83, generator=generator)
    weight = torch.randn(83, generator=generator)
    y, s = rms_norm.RMS_NORM.make(norm, foreign)(x, weight, residual)
    expected, added = exact("rms_norm", norm)(x.double(), weight.double(), residual.double())
    near(y, expected)
    near(s, added)
    for activation in ("silu", "gelu", "gelu_tanh", "relu"):
        gated = GatedActivationSpec(dtype="float32", dim=51, activation=activation)
        x = torch.randn(7, 102, generator=generator) * 4
        ours = gated_activation.GATED_ACTIVATION.make(gated, foreign)(x)
        near(ours, exact("gated_activation", gated)(x.double()))


def test_sampling(generator, foreign) -> None:  # type: ignore[no-untyped-def]
    """The largest where no temperature is asked for; within the filters otherwise."""
    logits = torch.randn(4, 3000, generator=generator) * 3
    op = native_sampling.SAMPLING.make(SamplingSpec(vocab_size=3000), foreign)
    temperature, top_k = torch.tensor([0.0, 1.0, 1.0, 0.7]), torch.tensor([0, 1, 5, 0]).int()
    top_p, uniform = torch.tensor([1.0, 1.0, 1.0, 0.3]), torch.rand(4, generator=generator)
    chosen = op(logits, temperature, top_k, top_p, None, uniform)
    first, second, third, fourth = chosen.tolist()
    assert first == logits[0].argmax()
    assert second == logits[1].argmax()
    assert third in logits[2].topk(5).indices
    sorted_, order = (logits[3] / 0.7).softmax(-1).sort(descending=True)
    assert fourth in order[: int((sorted_.cumsum(0) < 0.3).sum()) + 1]
