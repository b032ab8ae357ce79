"""Attention on Hopper: prompts, and one token each of many sequences."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import torch

from allmetal.platform import reference
from allmetal.platform.contract import Supported, Unsupported
from allmetal.platform.specs import AttentionSpec
from allmetal.testing.batches import paged_batch

if TYPE_CHECKING:
    from allmetal_triton.ops.attention import Launch

pytest.importorskip("triton", reason="needs triton")

HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability()[0] == 9
BASE = AttentionSpec(
    dtype="bfloat16",
    kv_dtype="bfloat16",
    num_heads=8,
    num_kv_heads=2,
    head_dim=128,
    block_size=16,
    scale=128**-0.5,
)
SPECS = {
    "base": BASE,
    "float16": replace(BASE, dtype="float16", kv_dtype="float16", head_dim=64),
    "large_pages": replace(BASE, block_size=256),
    "wide_heads": replace(BASE, head_dim=256),
    "window": replace(BASE, window=100),
    "short_window": replace(BASE, window=5, head_dim=64),
    "soft_cap": replace(BASE, soft_cap=5.0),
    "sinks": replace(BASE, sinks=True),
    "groups_of_seven": replace(BASE, num_heads=14),
}
BATCHES = {
    "prompt": ([200], [200]),
    "mixed": ([1, 300, 77, 1], [100, 700, 77, 5]),
    "chunks": ([130, 600], [1030, 600]),
    "short": ([17, 3, 20], [17, 90, 260]),
}


def agrees_with_float64(
    spec: AttentionSpec, query_lens: list[int], seq_lens: list[int], num_cores: int
) -> list[Launch]:
    """Twice; returns the launches."""
    from allmetal_cuda.ops.hopper_attention import HopperAttention
    from allmetal_triton.target import Target

    dtype = getattr(torch, spec.dtype)
    generator = torch.Generator()
    print("seed", generator.seed())
    paged = paged_batch(query_lens, seq_lens, spec.block_size, generator=generator)
    target = Target(num_cores=lambda: num_cores, shared_memory=232_448, dot_rows=64)
    kernel = HopperAttention(target)
    assert isinstance(kernel.supports(spec), Supported)
    op = kernel.build(spec)
    shape = (sum(seq_lens), 2, spec.num_kv_heads, spec.head_dim)
    kv = torch.randn(shape, generator=generator).to(dtype)
    cache = torch.full(op.cache_shape(paged.num_blocks), float("nan"), dtype=dtype)
    cache[paged.history // spec.block_size, :, paged.history % spec.block_size] = kv
    q = 2 * torch.randn(sum(query_lens), spec.num_heads, spec.head_dim, generator=generator)
    sinks = torch.randn(spec.num_heads, generator=generator).to(dtype) if spec.sinks else None
    (exact,) = reference.kernels()["attention"]
    wide = exact.build(replace(spec, dtype="float64", kv_dtype="float64"))
    given = None if sinks is None else sinks.double()
    expected = wide(q.to(dtype).double(), cache.double(), paged.attention, given)
    there = replace(
        paged.attention,
        **{
            name: getattr(paged.attention, name).cuda()
            for name in ("query_start", "seq_lens", "block_table", "slot_mapping")
        },
        memo={},
    )

    inputs = (q.to(dtype).cuda(), cache.cuda(), there, None if sinks is None else sinks.cuda())
    actual = op(*inputs)

    assert torch.equal(op(*inputs), actual), "the next layer's launch counts from zero too"
    error = (actual.double().cpu() - expected).norm(dim=(1, 2)) / expected.norm(dim=(1, 2))
    assert error.max() < 1e-2
    (launches,) = there.memo.values()
    return launches  # type: ignore[return-value]


@pytest.mark.skipif(not HOPPER, reason="needs a Hopper GPU")
@pytest.mark.parametrize("num_cores", [1, 2])
@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("name", SPECS)
def test_prompts_agree_with_float64(name: str, batch: str, num_cores: int) -> None:
    # Few cores: then any prompt is worth the kernel for prompts, and programs take many units.
    launches = agrees_with_float64(SPECS[name], *BATCHES[batch], num_cores)
    assert any(launch.whole for launch in launches)


@pytest.mark.skipif(not HOPPER, reason="needs a Hopper GPU")
@pytest.mark.parametrize("query_len", [1, 3])
@pytest.mark.parametrize("name", [name for name in SPECS if name != "wide_heads"])
def test_many_sequences_agree_with_float64(name: str, query_len: int) -> None:
    from allmetal_cuda.ops.hopper_attention import _UNITS_A_CORE

    # One of them so long that it is read in parts, some of which a window leaves empty.
    seq_lens = [3, 2000, 64, 65, 127, 128, *(17 * i + query_len for i in range(16))]
    (launch,) = agrees_with_float64(SPECS[name], [query_len] * 22, seq_lens, 8)
    assert launch.slots * SPECS[name].num_kv_heads >= 8 * _UNITS_A_CORE
    if not SPECS[name].window:
        assert launch.items[:, 3].max() > 1


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        (replace(BASE, dtype="float32", kv_dtype="float32"), "float32"),
        (replace(BASE, kv_dtype="float8_e4m3fn"), "float8_e4m3fn"),
        (replace(BASE, head_dim=96), "head_dim must be one of 64, 128, 256, not 96"),
        (replace(BASE, block_size=8), "block_size must be a power of two"),
        (replace(BASE, block_size=48), "block_size must be a power of two"),
    ],
)
def test_a_refusal_says_why(spec: AttentionSpec, told: str) -> None:
    from allmetal_cuda.ops.hopper_attention import HopperAttention
    from allmetal_triton.target import Target

    target = Target(num_cores=lambda: 1, shared_memory=232_448)
    answer = HopperAttention(target).supports(spec)
    assert isinstance(answer, Unsupported)
    assert told in answer.reason
