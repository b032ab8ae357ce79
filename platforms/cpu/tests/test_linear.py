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


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("group_size", [0, 16, 32, 64, 128, 384])
@pytest.mark.parametrize("num_tokens", [1, 70])
def test_integer_weights_agree_with_float64(  # type: ignore[no-untyped-def]
    num_tokens, group_size, bits, generator, accepting, near
) -> None:
    weight = IntWeight(bits=bits, group_size=group_size)
    spec = LinearSpec(dtype="bfloat16", in_features=768, out_features=96, bias=False, weight=weight)
    weights = make_weights(spec, generator)
    x = torch.randn(num_tokens, 768, generator=generator).bfloat16()
    expected = exactly(spec, weights, x, None)
    kernels = accepting(spec)
    assert kernels
    for kernel in kernels:
        op = kernel.build(spec)
        near(op(x, op.pack(weights), None), expected)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("group_size", [0, 32, 128])
@pytest.mark.parametrize("num_tokens", [1, 70, 300])
def test_activations_are_rounded_to_8_bits_where_that_is_taken(  # type: ignore[no-untyped-def]
    num_tokens, group_size, bits, generator, accepting
) -> None:
    weight = IntWeight(bits=bits, group_size=group_size, act_dtype="int8")
    spec = LinearSpec(dtype="bfloat16", in_features=768, out_features=96, bias=False, weight=weight)
    weights = make_weights(spec, generator)
    x = torch.randn(num_tokens, 768, generator=generator).bfloat16()
    rounded = exactly(spec, weights, x, None)
    precise = exactly(replace(spec, weight=replace(weight, act_dtype=None)), weights, x, None)
    for kernel in accepting(spec):
        op = kernel.build(spec)
        y = op(x, op.pack(weights), None).double()
        assert (y - rounded).norm() < 0.005 * rounded.norm()
        assert (y - rounded).norm() < (y - precise).norm()


def make_weights(spec: LinearSpec, generator: torch.Generator) -> dict[str, torch.Tensor]:
    shape = (spec.out_features, spec.in_features)
    if isinstance(spec.weight, DenseWeight):
        return {"weight": torch.randn(shape, generator=generator).to(getattr(torch, spec.dtype))}
    assert isinstance(spec.weight, IntWeight)
    groups = spec.in_features // spec.weight.group_size if spec.weight.group_size else 1
    limit = 2 ** (spec.weight.bits - 1)
    return {
        "weight": torch.randint(1 - limit, limit, shape, generator=generator, dtype=torch.int8),
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
@pytest.mark.parametrize("num_tokens", [1, 5, 70])
@pytest.mark.parametrize("out_features", [40, 100])
def test_ggml_blocks_agree_with_float64(  # type: ignore[no-untyped-def]
    out_features, num_tokens, ggml_type, generator, accepting, near
) -> None:
    spec = LinearSpec(
        dtype="bfloat16",
        in_features=512,
        out_features=out_features,
        bias=False,
        weight=GGUFWeight(type=ggml_type),
    )
    raw = torch.randint(0, 256, (out_features, row_bytes(ggml_type, 512)), generator=generator)
    blocks = raw.to(torch.uint8).view(out_features, -1, BLOCKS[ggml_type].nbytes)
    with_small_scales(blocks, ggml_type)
    weights = {"weight": blocks.flatten(1)}
    x = torch.randn(num_tokens, 512, generator=generator).bfloat16()
    expected = x.double() @ dequantize(weights["weight"], ggml_type, torch.float64).T
    kernels = accepting(spec)
    assert kernels
    for kernel in kernels:
        print(kernel.name)
        op = kernel.build(spec)
        y = op(x, op.pack(weights), None)
        if kernel.name == "native[avx512_bf16]":  # rounds activations to 8 bits of their group
            error = (y.double() - expected).norm(dim=1) / expected.norm(dim=1)
            assert error.max() < 0.01
        else:
            near(y, expected)


@pytest.mark.parametrize("ggml_type", sorted(BLOCKS))
@pytest.mark.parametrize("num_tokens", [1, 5, 512])
def test_each_weight_is_decoded_as_the_format_says(  # type: ignore[no-untyped-def]
    num_tokens, ggml_type, generator, accepting
) -> None:
    """Tokens of a single one pick weights, which must come out rounded to the dtype, once."""
    spec = LinearSpec(
        dtype="bfloat16",
        in_features=512,
        out_features=80,
        bias=False,
        weight=GGUFWeight(type=ggml_type),
    )
    raw = torch.randint(0, 256, (80, row_bytes(ggml_type, 512)), generator=generator)
    blocks = raw.to(torch.uint8).view(80, -1, BLOCKS[ggml_type].nbytes)
    with_small_scales(blocks, ggml_type)
    weights = {"weight": blocks.flatten(1)}
    expected = dequantize(weights["weight"], ggml_type, torch.float32)
    picked = torch.randperm(512, generator=generator)[:num_tokens]
    x = torch.eye(512)[picked].bfloat16()
    for kernel in accepting(spec):
        op = kernel.build(spec)
        y = op(x, op.pack(weights), None)
        torch.testing.assert_close(
            y.float(), expected.T[picked].bfloat16().float(), rtol=2**-7, atol=1e-6
        )


def with_small_scales(blocks: torch.Tensor, ggml_type: str) -> None:
    """Random bytes make infinite half-precision scales; put a sane one in each place."""
    half = torch.tensor([0.0123], dtype=torch.float16).view(torch.uint8)
    places = {"Q4_1": (0, 2), "Q5_1": (0, 2), "Q2_K": (80, 82), "Q3_K": (108,), "Q6_K": (208,)}
    places |= {"Q4_K": (0, 2), "Q5_K": (0, 2)}
    for at in places.get(ggml_type, (0,)):
        blocks[..., at : at + 2] = half


@pytest.mark.parametrize(
    "weight",
    [INT8, IntWeight(bits=4, group_size=32), *(GGUFWeight(type=t) for t in ("Q8_0", "Q4_0"))],
    ids=["int8", "int4", "Q8_0", "Q4_0"],
)
@pytest.mark.parametrize("num_tokens", [1, 3, 8, 100])
def test_a_channel_of_huge_values_leaves_the_others_their_precision(  # type: ignore[no-untyped-def]
    num_tokens, weight, generator, accepting
) -> None:
    spec = LinearSpec(
        dtype="bfloat16", in_features=1024, out_features=64, bias=False, weight=weight
    )
    x = torch.randn(num_tokens, 1024, generator=generator)
    x[:, 5] = 300.0  # and no output listens to it, so that only the others are seen
    if isinstance(weight, IntWeight):
        weights = make_weights(spec, generator)
        weights["weight"][:, 5] = 0
    else:
        raw = torch.randint(0, 256, (64, row_bytes(weight.type, 1024)), generator=generator)
        blocks = raw.to(torch.uint8).view(64, -1, BLOCKS[weight.type].nbytes)
        with_small_scales(blocks, weight.type)
        low = 8 if weight.type == "Q4_0" else 0  # what stands for nought
        blocks[:, 0, 2 + 5] = low
        weights = {"weight": blocks.flatten(1)}
    x = x.bfloat16()
    expected = exactly(spec, weights, x, None)
    for kernel in accepting(spec):
        op = kernel.build(spec)
        error = op(x, op.pack(weights), None).double() - expected
        assert error.norm() <= 0.01 * expected.norm()


def rounded_as_ggml(x: torch.Tensor, group: int) -> torch.Tensor:
    """8 bits a value and a scale a group: what llama.cpp makes of activations."""
    parts = x.double().unflatten(1, (-1, group))
    step = (parts.abs().amax(-1, keepdim=True) / 127).clamp(min=1e-30)
    return ((parts / step).round() * step).flatten(1)


@pytest.mark.parametrize("shape", ["even", "a channel of each group", "all magnitudes", "zeros"])
@pytest.mark.parametrize(("ggml_type", "group"), [("Q8_0", 32), ("Q4_K", 256), ("Q6_K", 256)])
def test_activations_are_rounded_no_coarser_than_ggml_does(  # type: ignore[no-untyped-def]
    ggml_type, group, shape, generator, accepting
) -> None:
    spec = LinearSpec(
        dtype="bfloat16",
        in_features=1024,
        out_features=96,
        bias=False,
        weight=GGUFWeight(type=ggml_type),
    )
    raw = torch.randint(0, 256, (96, row_bytes(ggml_type, 1024)), generator=generator)
    blocks = raw.to(torch.uint8).view(96, -1, BLOCKS[ggml_type].nbytes)
    with_small_scales(blocks, ggml_type)
    weights = {"weight": blocks.flatten(1)}
    x = torch.randn(40, 1024, generator=generator)
    if shape == "a channel of each group":
        x[:, ::32] *= 1000
    elif shape == "all magnitudes":
        x *= 10 ** torch.linspace(-6, 6, 1024)
    elif shape == "zeros":
        x[::2], x[:, :512] = 0, 0
    x = x.bfloat16()
    expected = exactly(spec, weights, x, None)
    theirs = exactly(spec, weights, rounded_as_ggml(x, group), None) - expected
    last_place = expected.norm(dim=1) * 2**-8  # of the result, which is bfloat16
    for kernel in accepting(spec):
        op = kernel.build(spec)
        error = (op(x, op.pack(weights), None).double() - expected).norm(dim=1)
        assert (error <= theirs.norm(dim=1) + last_place).all(), kernel.name


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("weight", [INT8, GGUFWeight(type="Q4_K")], ids=["int8", "Q4_K"])
def test_a_token_that_is_not_finite_spoils_no_other_and_is_not_hidden(  # type: ignore[no-untyped-def]
    weight, bad, generator, accepting
) -> None:
    spec = LinearSpec(dtype="bfloat16", in_features=256, out_features=40, bias=False, weight=weight)
    if isinstance(weight, IntWeight):
        weights = make_weights(spec, generator)
    else:
        blocks = torch.randint(0, 256, (40, 144), generator=generator).to(torch.uint8)
        with_small_scales(blocks, "Q4_K")
        weights = {"weight": blocks}
    x = torch.randn(3, 256, generator=generator).bfloat16()
    x[1, 77] = bad
    for kernel in accepting(spec):
        op = kernel.build(spec)
        y = op(x, op.pack(weights), None)
        assert y[[0, 2]].isfinite().all()
        assert not y[1].isfinite().any()
