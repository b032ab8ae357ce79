from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from allmetal.platform import reference
from allmetal.platform.contract import Supported, Unsupported
from allmetal.platform.specs import DenseWeight, IntWeight, LinearSpec

pytest.importorskip("triton", reason="needs triton")
from allmetal_triton.ops.int_linear import TritonIntLinear, channels_at_once, pack_halves

SPEC = LinearSpec(dtype="float16", in_features=192, out_features=70, bias=True, weight=IntWeight())
WEIGHTS = [
    (IntWeight(), 200),
    (IntWeight(group_size=32), 192),
    (IntWeight(group_size=96), 192),
    (IntWeight(bits=4), 200),
    (IntWeight(bits=4, group_size=32), 224),
    (IntWeight(bits=4, group_size=128), 384),
    (IntWeight(act_dtype="int8"), 200),
    (IntWeight(act_dtype="int8", group_size=32), 96),
    (IntWeight(bits=4, act_dtype="int8", group_size=64), 192),
]


@pytest.mark.parametrize("num_tokens", [0, 1, 40])
@pytest.mark.parametrize(("weight", "in_features"), WEIGHTS)
def test_integer_weights_agree_with_float64(  # type: ignore[no-untyped-def]
    weight, in_features, num_tokens, generator, target, device
) -> None:
    spec = replace(SPEC, weight=weight, in_features=in_features)
    most = 2 ** (weight.bits - 1)
    values = torch.randint(-most, most, (70, in_features), generator=generator, dtype=torch.int8)
    groups = in_features // (weight.group_size or in_features)
    stored = {"weight": values, "scale": torch.rand(70, groups, generator=generator) / most}
    # Rows of a wider tensor, as a slice of another layer's output is.
    wide = torch.randn(num_tokens, in_features + 8, generator=generator).half()
    x, bias = wide[:, :in_features], torch.randn(70, generator=generator).half()
    (exact,) = reference.kernels()["linear"]
    op = exact.build(replace(spec, dtype="float64"))
    expected = op(x.double(), op.pack(stored), bias.double())
    ours = TritonIntLinear(target)
    assert isinstance(ours.supports(spec), Supported)
    op = ours.build(spec)
    packed = op.pack({name: tensor.to(device) for name, tensor in stored.items()})

    y = op(wide.to(device)[:, :in_features], packed, bias.to(device))

    assert y.shape == expected.shape
    if num_tokens:
        # Of an activation in the middle of two integers rounding may choose either: a step of one
        # channel in 96 moves a row by 2e-3 and more.
        tolerance = 1e-2 if weight.act_dtype else 1e-3
        error = (y.double().cpu() - expected).norm(dim=1) / expected.norm(dim=1)
        assert error.max() < tolerance


def test_two_values_of_four_bits_are_a_byte() -> None:
    values = torch.arange(-8, 8, dtype=torch.int8).repeat(1, 5)
    packed = pack_halves(values, 32)
    assert packed.shape == (1, 64)
    low, high = (packed << 4) >> 4, packed >> 4
    again = torch.stack([low.view(1, 2, 32), high.view(1, 2, 32)], 2).flatten(1)
    assert torch.equal(again[:, :80], values)
    assert not again[:, 80:].any()


def test_channels_at_once_divide_a_group() -> None:
    assert [64, 32, 64, 64, 32] == [channels_at_once(size) for size in (0, 32, 64, 128, 96)]


@pytest.mark.parametrize(
    ("weight", "told"),
    [
        (DenseWeight(dtype="float16"), "takes integer weights, not dense"),
        (IntWeight(bits=3), "bits must be 4 or 8, not 3"),
        (IntWeight(group_size=48), "group_size must be a multiple of 32, not 48"),
        (IntWeight(act_dtype="float16"), "rounds activations to int8, not to float16"),
    ],
)
def test_a_refusal_says_why(weight, told, target) -> None:  # type: ignore[no-untyped-def]
    answer = TritonIntLinear(target).supports(replace(SPEC, weight=weight))
    assert isinstance(answer, Unsupported)
    assert told in answer.reason
