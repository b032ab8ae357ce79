from __future__ import annotations

import pytest
import torch

from allmetal.quant.float8 import ROWS, dequantize, quantize

# Bits of fraction, and the type's smallest step.
TYPES = {torch.float8_e4m3fn: (3, 2.0**-9), torch.float8_e5m2: (2, 2.0**-16)}


@pytest.fixture
def weight() -> torch.Tensor:
    return torch.randn(ROWS + 5, 64, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("dtype", TYPES)
def test_no_value_is_further_off_than_half_a_step(weight: torch.Tensor, dtype: torch.dtype) -> None:
    tensors = quantize(weight, dtype)

    assert dtype == tensors["weight"].dtype
    assert (ROWS + 5, 1) == tuple(tensors["scale"].shape)
    back = dequantize(**tensors, dtype=torch.float32)
    fraction, smallest = TYPES[dtype]
    half = torch.maximum(weight.abs() * 2.0 ** -(fraction + 1), smallest / 2 * tensors["scale"])
    assert ((back - weight).abs() <= 1.0001 * half).all()


def test_the_largest_of_a_row_becomes_the_largest_of_the_type(weight: torch.Tensor) -> None:
    tensors = quantize(weight)

    assert (tensors["weight"].float().abs().amax(dim=1) == 448).all()
    assert torch.equal(weight.abs().amax(dim=1, keepdim=True) / 448, tensors["scale"])


def test_a_row_of_zeros_stays_zero() -> None:
    tensors = quantize(torch.zeros(2, 32, dtype=torch.bfloat16))

    assert not dequantize(**tensors, dtype=torch.bfloat16).any()
    assert torch.isfinite(tensors["scale"]).all()
