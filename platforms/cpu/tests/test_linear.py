from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from allmetal.platform import reference
from allmetal.platform.specs import DenseWeight, GGUFWeight, IntWeight, LinearSpec
from allmetal.quant.ggml import BLOCKS, row_bytes
from allmetal.quant.gguf import dequantize

BF16, F32 = DenseWeight(dtype="bfloat16"), DenseWeight(dtype="float32")
INT8 = IntWeight()
SHAPES = [(1, 1), (7, 5), (64, 128), (100, 260), (513, 1024), (1024, 96), (33, 3072)]


@pytest.mark.parametrize("num_tokens", [0, 1, 2, 3, 4, 5, 7, 8, 13, 16, 31, 64, 100])
@pytest.mark.parametrize(("out_features", "in_features"), SHAPES)
@pytest.mark.parametrize("weight", [BF16, F32, INT8], ids=["bfloat16", "float32", "int8"])
def test_linear_agrees_with_float64(  # type: ignore[no-untyped-def]
    weight, out_features, in_features, num_tokens, generator, accepting, near
) -> None:
    bias = bool((out_features + num_tokens) % 2)
    spec = LinearSpec(
        dtype="float32" if weight == F32 else "bfloat16",
        in_features=in_features,
        out_features=out_features,
        bias=bias,
        weight=weight,
    )
    dtype = getattr(torch, spec.dtype)
    weights = make_weights(spec, generator)
    x = torch.randn(num_tokens, in_features, generator=generator).to(dtype)
    b = torch.randn(out_features, generator=generator).to(dtype) if bias else None
    expected = exactly(spec, weights, x, b)
    kernels = accepting(spec)
    assert kernels
    for kernel in kernels:
        print(kernel.name)
        op = kernel.build(spec)
        near(op(x, op.pack(weights), b), expected)


@pytest.mark.parametrize("group_size", [0, 32, 128])
@pytest.mark.parametrize("act_dtype", [None, "int8"])
def test_integer_weights_that_are_taken_agree_with_float64(  # type: ignore[no-untyped-def]
    group_size, act_dtype, generator, accepting, near
) -> None:
    weight = IntWeight(group_size=group_size, act_dtype=act_dtype)
    spec = LinearSpec(dtype="bfloat16", in_features=256, out_features=96, bias=False, weight=weight)
    weights = make_weights(spec, generator)
    x = torch.randn(5, 256, generator=generator).bfloat16()
    expected = exactly(spec, weights, x, None)
    for kernel in accepting(spec):
        op = kernel.build(spec)
        near(op(x, op.pack(weights), None), expected)


def make_weights(spec: LinearSpec, generator: torch.Generator) -> dict[str, torch.Tensor]:
    shape = (spec.out_features, spec.in_features)
    if isinstance(spec.weight, DenseWeight):
        return {"weight": torch.randn(shape, generator=generator).to(getattr(torch, spec.dtype))}
    assert isinstance(spec.weight, IntWeight)
    groups = spec.in_features // spec.weight.group_size if spec.weight.group_size else 1
    return {
        "weight": torch.randint(-127, 128, shape, generator=generator, dtype=torch.int8),
        "scale": torch.rand(spec.out_features, groups, generator=generator) * 0.01 + 0.001,
    }


def exactly(
    spec: LinearSpec,
    weights: dict[str, torch.Tensor],
    x: torch.Tensor,
    bias: torch.Tensor | None,
) -> torch.Tensor:
    (kernel,) = reference.kernels()["linear"]
    op = kernel.build(replace(spec, dtype="float64"))
    return op(x.double(), op.pack(weights), bias)


@pytest.mark.parametrize("ggml_type", sorted(BLOCKS))
def test_ggml_blocks_agree_with_float64(ggml_type, generator, accepting, near) -> None:  # type: ignore[no-untyped-def]
    spec = LinearSpec(
        dtype="bfloat16",
        in_features=512,
        out_features=40,
        bias=False,
        weight=GGUFWeight(type=ggml_type),
    )
    raw = torch.randint(0, 256, (40, row_bytes(ggml_type, 512)), generator=generator)
    blocks = raw.to(torch.uint8).view(40, -1, BLOCKS[ggml_type].nbytes)
    with_small_scales(blocks, ggml_type)
    weights = {"weight": blocks.flatten(1)}
    x = torch.randn(5, 512, generator=generator).bfloat16()
    expected = x.double() @ dequantize(weights["weight"], ggml_type, torch.float64).T
    kernels = accepting(spec)
    assert kernels
    for kernel in kernels:
        print(kernel.name)
        op = kernel.build(spec)
        near(op(x, op.pack(weights), None), expected)


def with_small_scales(blocks: torch.Tensor, ggml_type: str) -> None:
    """Random bytes make infinite half-precision scales; put a sane one in each place."""
    half = torch.tensor([0.0123], dtype=torch.float16).view(torch.uint8)
    places = {"Q4_1": (0, 2), "Q5_1": (0, 2), "Q2_K": (80, 82), "Q3_K": (108,), "Q6_K": (208,)}
    places |= {"Q4_K": (0, 2), "Q5_K": (0, 2)}
    for at in places.get(ggml_type, (0,)):
        blocks[..., at : at + 2] = half
