"""aiter's Triton kernels, called by our provider and interpreted, against the reference.

In float16: the interpreter computes bfloat16 wrongly, and aiter takes no float32.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import standin_rocm
import torch

from allmetal.platform import reference
from allmetal.platform.contract import DeviceInfo, Supported, Unsupported
from allmetal.platform.specs import AttentionSpec, IntWeight, LinearSpec
from allmetal.testing.batches import paged_batch
from allmetal.testing.poison import poison
from allmetal_rocm.aiter.attention import AiterAttention
from allmetal_rocm.aiter.linear import AiterInt8Linear
from allmetal_rocm.kernels import target
from allmetal_triton.interpreter import mend

BASE = AttentionSpec(
    dtype="float16",
    kv_dtype="float16",
    num_heads=8,
    num_kv_heads=2,
    head_dim=64,
    block_size=16,
    scale=64**-0.5,
)
BATCHES = {
    "decode": ([1, 1, 1], [1, 40, 17]),
    "prefill": ([19, 5], [19, 5]),
    "mixed": ([1, 20, 3], [33, 61, 3]),
    "long": ([1], [540]),  # in segments, which a second launch adds up
}


@pytest.fixture(autouse=True)
def _device() -> Iterator[None]:
    mend()
    with standin_rocm.device():
        yield


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(*shape).half()


CASES = {
    **{name: (BASE, lengths) for name, lengths in BATCHES.items()},
    "soft cap": (replace(BASE, soft_cap=5.0), BATCHES["mixed"]),
    "sinks": (replace(BASE, sinks=True, num_heads=2), BATCHES["mixed"]),
    "window": (replace(BASE, window=24, block_size=64), BATCHES["mixed"]),
    "odd head": (replace(BASE, head_dim=80, num_heads=6), BATCHES["mixed"]),
}


@pytest.mark.parametrize(("spec", "lengths"), CASES.values(), ids=CASES)
def test_attention_is_the_references(
    spec: AttentionSpec, lengths: tuple[list[int], list[int]]
) -> None:
    kernel = AiterAttention("gfx942")
    paged = paged_batch(*lengths, spec.block_size, generator=torch.Generator())
    op = kernel.build(spec)
    cache = torch.zeros(op.cache_shape(paged.num_blocks), dtype=torch.float16)
    at = paged.history
    kv = normal(len(at), 2, spec.num_kv_heads, spec.head_dim)
    cache[at // spec.block_size, :, at % spec.block_size] = kv
    q = normal(sum(lengths[0]), spec.num_heads, spec.head_dim)
    sinks = torch.randn(spec.num_heads) if spec.sinks else None
    (exact,) = reference.kernels()["attention"]
    expected = exact.build(spec)(q, cache, paged.attention, sinks)

    out = op(q, cache, paged.attention, sinks)

    assert (out - expected).abs().max() < 4e-3


def test_attention_is_refused_for_what_it_reads_behind_a_sequences_end() -> None:
    """The day that a version passes over it, this fails and it can be offered."""
    kernel = AiterAttention("gfx942")
    refused = kernel.supports(BASE)
    assert isinstance(refused, Unsupported)
    assert "last block whole" in refused.reason
    paged = paged_batch([1], [5], BASE.block_size, generator=torch.Generator())
    op = kernel.build(BASE)
    cache = poison(torch.empty(op.cache_shape(paged.num_blocks), dtype=torch.float16))
    cache[paged.history // 16, :, paged.history % 16] = normal(5, 2, 2, 64)

    assert op(normal(1, 8, 64), cache, paged.attention).isnan().any()


@pytest.mark.parametrize("num_tokens", [1, 5, 130])
@pytest.mark.parametrize("bias", [False, True])
def test_int8_products_are_the_references(num_tokens: int, bias: bool) -> None:
    spec = LinearSpec(
        dtype="float16",
        in_features=200,
        out_features=72,
        bias=bias,
        weight=IntWeight(act_dtype="int8"),
    )
    here = target(DeviceInfo(index=0, name="", total_memory=0, arch="gfx942"))
    kernel = AiterInt8Linear("gfx942", here)
    assert isinstance(kernel.supports(spec), Supported)
    given = {
        "weight": torch.randint(-127, 128, (72, 200), dtype=torch.int8),
        "scale": torch.rand(72, 1) / 100,
    }
    x, b = normal(num_tokens, 200), normal(72) if bias else None
    (exact,) = reference.kernels()["linear"]
    op = exact.build(spec)
    expected = op(x, op.pack(given), b)

    ours = kernel.build(spec)
    y = ours(x, ours.pack(given), b)

    assert y.dtype == torch.float16
    assert (y - expected).abs().max() < 4e-3 * expected.abs().max()
