"""Values cross between MLX and torch unchanged, and what torch sees stays."""

from __future__ import annotations

import gc

import mlx.core as mx
import pytest
import torch

from allmetal_mlx.bridge import DTYPES, to_mlx, to_torch


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(3, 4), (1,), (0, 4), (2, 3, 5)])
def test_every_type_goes_there_and_back(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    x = (100 * torch.randn(shape)).to(dtype)

    there = to_mlx(x)
    back = to_torch(there)

    assert DTYPES[dtype] == there.dtype
    assert dtype == back.dtype
    assert x.tolist() == back.tolist()
    assert x.shape == back.shape


def test_views_keep_their_order() -> None:
    x = torch.arange(24.0).view(4, 6)

    assert x.t()[1:].tolist() == to_mlx(x.t()[1:]).tolist()
    assert x.t().tolist() == to_torch(to_mlx(x).T).tolist()
    assert x.bfloat16().t().tolist() == to_mlx(x.bfloat16().t()).tolist()


def test_what_torch_sees_outlives_the_array() -> None:
    seen = to_torch(mx.arange(100_000, dtype=mx.float32) * 2)
    gc.collect()
    others = [mx.full((100_000,), float("nan")) for _ in range(20)]
    mx.eval(others)

    assert torch.equal(torch.arange(100_000.0) * 2, seen)


def test_a_change_after_the_copy_is_not_seen_there() -> None:
    x = torch.ones(3)
    there = to_mlx(x)
    x.zero_()

    assert [1.0, 1.0, 1.0] == there.tolist()
