from __future__ import annotations

import pytest
import torch

from allmetal.quant.int8 import ROWS, dequantize, quantize


@pytest.fixture
def weight() -> torch.Tensor:
    return torch.randn(ROWS + 5, 64, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("group", [0, 16, 64])
def test_no_value_is_further_off_than_half_a_step(weight: torch.Tensor, group: int) -> None:
    tensors = quantize(weight, group)

    size = group or 64
    assert (ROWS + 5, 64) == tuple(tensors["weight"].shape)
    assert (ROWS + 5, 64 // size) == tuple(tensors["scale"].shape)
    assert torch.int8 == tensors["weight"].dtype
    back = dequantize(**tensors, dtype=torch.float32)
    step = tensors["scale"].repeat_interleave(size, dim=1)
    assert ((back - weight).abs() <= 0.5001 * step).all()


def test_the_largest_of_a_row_becomes_127(weight: torch.Tensor) -> None:
    tensors = quantize(weight)

    assert (tensors["weight"].abs().amax(dim=1) == 127).all()
    expected = weight.abs().amax(dim=1, keepdim=True) / 127
    assert torch.equal(expected, tensors["scale"])


def test_a_row_of_zeros_stays_zero() -> None:
    tensors = quantize(torch.zeros(2, 32, dtype=torch.bfloat16))

    assert not dequantize(**tensors, dtype=torch.bfloat16).any()
    assert torch.isfinite(tensors["scale"]).all()


def test_groups_that_do_not_fill_a_row_are_refused(weight: torch.Tensor) -> None:
    with pytest.raises(ValueError, match="64 values do not divide into groups of 48"):
        quantize(weight, 48)
