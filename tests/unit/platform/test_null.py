"""The null platform takes every problem and answers zeros."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from allmetal.platform import specs
from allmetal.platform.contract import AnyKernel
from allmetal.platform.null import NullPlatform
from allmetal.platform.reference import kernels as reference
from allmetal.platform.select import Kernels
from allmetal.testing.batches import paged_batch

PLATFORM = NullPlatform()
(DEVICE,) = PLATFORM.probe()  # type: ignore[misc]
F32 = "float32"


@pytest.fixture
def kernels() -> Kernels:
    return Kernels(PLATFORM.kernels(DEVICE))


def test_it_covers_every_family_the_reference_does() -> None:
    assert set(reference()) == set(PLATFORM.kernels(DEVICE))


def test_its_answers_have_the_right_shape_and_nothing_in_them(kernels: Kernels) -> None:
    heads = {"dtype": F32, "kv_dtype": F32, "num_heads": 4, "num_kv_heads": 2, "head_dim": 8}
    attend = kernels.bind(specs.AttentionSpec(**heads, block_size=4, scale=1.0))  # type: ignore[arg-type]
    paged = paged_batch([2, 1], [5, 1], 4, generator=torch.Generator())
    cache = torch.full(attend.cache_shape(paged.num_blocks), torch.nan)
    out = attend(torch.ones(3, 4, 8), cache, paged.attention)
    prepare = kernels.bind(
        specs.AttentionInputSpec(**heads, block_size=4, kv_layout="nhd", rotary_dim=8)  # type: ignore[arg-type]
    )
    q = prepare(torch.ones(3, 64), torch.zeros(3), None, cache, torch.zeros(3))
    weight = specs.GGUFWeight(type="of tomorrow")
    linear = kernels.bind(
        specs.LinearSpec(dtype=F32, in_features=8, out_features=5, bias=False, weight=weight)
    )
    y = linear(torch.ones(3, 8), linear.pack({}), None)
    norm = kernels.bind(specs.RMSNormSpec(dtype=F32, dim=8, eps=1e-6))
    normal, _ = norm(torch.ones(3, 8), torch.ones(8))
    act = kernels.bind(specs.GatedActivationSpec(dtype=F32, dim=4, activation="silu"))
    gated = act(torch.ones(3, 8))
    ids = kernels.bind(specs.SamplingSpec(vocab_size=9))(
        torch.ones(3, 9), None, None, None, None, None
    )
    shapes: Sequence[tuple[torch.Tensor, tuple[int, ...]]] = (
        (out, (3, 4, 8)),
        (q, (3, 4, 8)),
        (y, (3, 5)),
        (normal, (3, 8)),
        (gated, (3, 4)),
        (ids, (3,)),
    )
    for tensor, shape in shapes:
        assert tensor.shape == shape
        assert not tensor.any()
    assert ids.dtype == torch.int64


def test_it_takes_every_spec() -> None:
    for offered in PLATFORM.kernels(DEVICE).values():
        kernel: AnyKernel
        (kernel,) = offered
        assert kernel.name == "null"
