"""Products in 8 bit floating point on Hopper."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from allmetal.platform import reference
from allmetal.platform.contract import Supported, Unsupported
from allmetal.platform.specs import DenseWeight, Float8Weight, LinearSpec
from allmetal.quant.float8 import quantize

pytest.importorskip("triton", reason="needs triton")
from allmetal_cuda.ops.hopper_float8 import HopperFloat8Linear
from allmetal_cuda.ops.hopper_float8_blocks import HopperFloat8Blocks
from allmetal_triton.target import Target

HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability()[0] == 9
KIND = "float8_e4m3fn"
TARGET = Target(num_cores=lambda: 132, shared_memory=232_448, dot_rows=64, early=True)
SPEC = LinearSpec(
    dtype="bfloat16",
    in_features=4096,
    out_features=6144,
    bias=False,
    weight=Float8Weight(act_dtype=KIND),
)
SHAPES = [(16, 16), (272, 112), (4096, 4096), (14336, 528), (1008, 9008)]


@pytest.mark.skipif(not HOPPER, reason="needs a Hopper GPU")
@pytest.mark.parametrize(("in_features", "out_features"), SHAPES)
def test_products_agree_with_the_reference(in_features: int, out_features: int) -> None:
    generator = torch.Generator()
    print("seed", generator.seed())
    bias = bool(out_features % 32)
    spec = replace(SPEC, in_features=in_features, out_features=out_features, bias=bias)
    stored = quantize(torch.randn(out_features, in_features, generator=generator))
    b = torch.randn(out_features, generator=generator).bfloat16() if bias else None
    (exact,) = reference.kernels()["linear"]
    wide = exact.build(replace(spec, dtype="float64"))
    expect = wide.pack(stored)
    op = HopperFloat8Linear(TARGET).build(spec)
    packed = op.pack({name: tensor.cuda() for name, tensor in stored.items()})
    for num_tokens in (0, 1, 2, 17, 33, 64, 100, 128, 200):
        x = torch.randn(num_tokens, in_features + 8, generator=generator).bfloat16()
        expected = wide(x[:, :in_features].double(), expect, b)
        y = op(x.cuda()[:, :in_features], packed, None if b is None else b.cuda())
        assert y.shape == (num_tokens, out_features)
        error = (y.double().cpu() - expected).norm() / expected.norm().clamp_min(1e-9)
        assert error < 1e-2, num_tokens


BLOCKS = replace(SPEC, weight=Float8Weight(act_dtype=KIND, block=(128, 128)))


@pytest.mark.skipif(not HOPPER, reason="needs a Hopper GPU")
@pytest.mark.parametrize(("in_features", "out_features"), [(128, 128), (1536, 384), (4096, 6144)])
def test_blocks_of_weights_agree_with_the_reference(in_features: int, out_features: int) -> None:
    generator = torch.Generator()
    print("seed", generator.seed())
    spec = replace(BLOCKS, in_features=in_features, out_features=out_features)
    stored = {
        "weight": torch.randn(out_features, in_features, generator=generator).to(
            torch.float8_e4m3fn
        ),
        "scale": torch.rand(out_features // 128, in_features // 128, generator=generator) + 0.01,
    }
    (exact,) = reference.kernels()["linear"]
    wide = exact.build(replace(spec, dtype="float64"))
    expect = wide.pack(stored)
    op = HopperFloat8Blocks(TARGET).build(spec)
    packed = op.pack({name: tensor.cuda() for name, tensor in stored.items()})
    for num_tokens in (0, 1, 2, 17, 33, 64, 100, 128, 200, 1000):
        x = torch.randn(num_tokens, in_features + 8, generator=generator).bfloat16()
        x *= 10 ** (4 * torch.rand(num_tokens, 1, generator=generator) - 2)
        expected = wide(x[:, :in_features].double(), expect, None)
        y = op(x.cuda()[:, :in_features], packed, None)
        assert y.shape == (num_tokens, out_features)
        error = (y.double().cpu() - expected).norm(dim=1) / expected.norm(dim=1).clamp_min(1e-9)
        assert not num_tokens or error.max() < 1e-2, num_tokens


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        (SPEC, "a scale for 128 x 128 weights"),
        (replace(BLOCKS, weight=Float8Weight(block=(128, 128))), "not float8_e4m3fn and bfloat16"),
        (replace(BLOCKS, dtype="float16"), "dtype must be bfloat16, not float16"),
        (replace(BLOCKS, in_features=640), "a multiple of 512 and"),
        (replace(BLOCKS, out_features=160), "and out_features of 128, not 4096 and 160"),
    ],
)
def test_a_refusal_of_blocks_says_why(spec: LinearSpec, told: str) -> None:
    answer = HopperFloat8Blocks(TARGET).supports(spec)
    assert isinstance(answer, Unsupported)
    assert told in answer.reason


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        (replace(SPEC, weight=DenseWeight(dtype="bfloat16")), "not dense"),
        (replace(SPEC, weight=Float8Weight()), "not float8_e4m3fn and bfloat16"),
        (replace(SPEC, weight=Float8Weight(dtype="float8_e5m2", act_dtype=KIND)), "float8_e5m2"),
        (replace(SPEC, dtype="float16"), "dtype must be bfloat16, not float16"),
        (replace(SPEC, out_features=100), "multiples of 16, not 4096 and 100"),
        (replace(SPEC, in_features=1 << 16), "at most 32768"),
    ],
)
def test_a_refusal_says_why(spec: LinearSpec, told: str) -> None:
    answer = HopperFloat8Linear(TARGET).supports(spec)
    assert isinstance(answer, Unsupported)
    assert told in answer.reason


def test_what_loading_makes_is_taken() -> None:
    assert HopperFloat8Linear(TARGET).supports(SPEC) == Supported(rank=5)
    assert HopperFloat8Blocks(TARGET).supports(BLOCKS) == Supported(rank=5)
