from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from allmetal.platform import reference
from allmetal.platform.contract import Supported, Unsupported
from allmetal.platform.specs import AttentionSpec
from allmetal.testing.batches import PagedBatch, paged_batch

pytest.importorskip("triton", reason="needs triton")
from allmetal_triton.ops.attention import TritonAttention

BASE = AttentionSpec(
    dtype="float16",
    kv_dtype="float16",
    num_heads=4,
    num_kv_heads=2,
    head_dim=32,
    block_size=16,
    scale=32**-0.5,
)
SPECS = {
    "base": BASE,
    "window": replace(BASE, window=20),
    "window_of_one": replace(BASE, window=1),
    "soft_cap": replace(BASE, soft_cap=4.0),
    "sinks": replace(BASE, sinks=True),
    "all_at_once": replace(BASE, window=37, soft_cap=7.0, sinks=True, num_heads=14),
    "one_head_for_all": replace(BASE, num_heads=12, num_kv_heads=1),
    "no_groups": replace(BASE, num_heads=3, num_kv_heads=3),
    "padded_head": replace(BASE, head_dim=80, block_size=8),
    "large_pages": replace(BASE, block_size=128),
    "odd_pages": replace(BASE, block_size=5, num_heads=10),
}
WIDE = {dim: replace(BASE, head_dim=dim, scale=dim**-0.5) for dim in (128, 192, 256, 512)}
BATCHES = {
    "one_token": ([1], [1]),
    "decode": ([1, 1, 1], [1, 17, 90]),
    "long_decode_in_parts": ([1, 1], [700, 64]),
    "drafts": ([3, 1, 2], [200, 9, 47]),
    "prefill": ([70], [70]),
    "chunk_of_a_long_prompt": ([33], [290]),
    "mixed": ([1, 40, 1, 19], [100, 40, 33, 51]),
}


def attend(kernel, spec, q, kv, paged: PagedBatch, sinks, device) -> torch.Tensor:  # type: ignore[no-untyped-def]
    """Lays the history out as the kernel wants it and attends."""
    op = kernel.build(spec)
    dtype = getattr(torch, spec.kv_dtype)
    # What lies in slots that nobody may see must not matter.
    cache = torch.full(op.cache_shape(paged.num_blocks), float("nan"), dtype=dtype)
    cache[paged.history // spec.block_size, :, paged.history % spec.block_size] = kv.to(dtype)
    batch = paged.attention
    batch.memo.clear()
    for name in ("query_start", "seq_lens", "block_table", "slot_mapping"):
        setattr(batch, name, getattr(batch, name).to(device))
    sinks = None if sinks is None else sinks.to(device)
    return op(q.to(getattr(torch, spec.dtype)).to(device), cache.to(device), batch, sinks)


@pytest.fixture
def agree(target, device, generator, near):  # type: ignore[no-untyped-def]
    """Checks a spec on a batch against the reference in float64."""

    def check(spec: AttentionSpec, query_lens: list[int], seq_lens: list[int]) -> None:
        dtype = getattr(torch, spec.dtype)
        paged = paged_batch(query_lens, seq_lens, spec.block_size, generator=generator)
        shape = (sum(seq_lens), 2, spec.num_kv_heads, spec.head_dim)
        kv = torch.randn(shape, generator=generator).to(getattr(torch, spec.kv_dtype))
        q = torch.randn(sum(query_lens), spec.num_heads, spec.head_dim, generator=generator)
        sinks = torch.randn(spec.num_heads, generator=generator) if spec.sinks else None
        exact = replace(spec, dtype="float64", kv_dtype="float64")
        (kernel,) = reference.kernels()["attention"]
        expected = attend(kernel, exact, q.to(dtype), kv, paged, sinks, "cpu")

        ours = TritonAttention(target)
        assert isinstance(ours.supports(spec), Supported)
        actual = attend(ours, spec, q, kv, paged, sinks, device)

        near(actual, expected)

    return check


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("name", SPECS)
def test_attention_agrees_with_float64(name, batch, agree) -> None:  # type: ignore[no-untyped-def]
    agree(SPECS[name], *BATCHES[batch])


@pytest.mark.parametrize("dim", WIDE)
def test_wide_heads_agree_with_float64(dim, agree) -> None:  # type: ignore[no-untyped-def]
    agree(WIDE[dim], [1, 70, 1], [150, 80, 9])


def test_every_dtype_agrees_with_float64(dtype, agree) -> None:  # type: ignore[no-untyped-def]
    agree(replace(BASE, dtype=dtype, kv_dtype=dtype), [1, 37], [80, 60])


def test_many_sequences_of_every_length(agree) -> None:  # type: ignore[no-untyped-def]
    agree(replace(BASE, num_heads=2), [1] * 70, [1 + 3 * i for i in range(70)])


def test_a_long_context_of_a_short_chunk_is_read_in_parts(agree) -> None:  # type: ignore[no-untyped-def]
    agree(replace(BASE, window=500), [50], [900])


def test_only_the_device_knows_the_lengths(target, device, generator, near) -> None:  # type: ignore[no-untyped-def]
    """A recorded launch is replayed for other lengths: none may have been read on the host."""
    paged = paged_batch([1, 1, 1, 1], [5, 300, 64, 31], 16, generator=generator)
    kv = torch.randn(400, 2, 2, 32, generator=generator)
    q = torch.randn(4, 4, 32, generator=generator)
    exact = replace(BASE, dtype="float64", kv_dtype="float64")
    (kernel,) = reference.kernels()["attention"]
    expected = attend(kernel, exact, q.half(), kv.half(), paged, None, "cpu")
    paged.attention.host_seq_lens = [1, 1, 1, 1]
    paged.attention.max_seq_len = 1

    near(attend(TritonAttention(target), BASE, q, kv, paged, None, device), expected)


def test_rows_that_only_fill_up_a_batch_are_passed_over(  # type: ignore[no-untyped-def]
    target, device, generator, near
) -> None:
    paged = paged_batch([1, 1, 1], [50, 20, 7], 16, generator=generator)
    kv = torch.randn(77, 2, 2, 32, generator=generator)
    q = torch.randn(3, 4, 32, generator=generator)
    exact = replace(BASE, dtype="float64", kv_dtype="float64")
    (kernel,) = reference.kernels()["attention"]
    expected = attend(kernel, exact, q.half(), kv.half(), paged, None, "cpu")
    batch = paged.attention
    batch.seq_lens = torch.tensor([50, 20, 0], dtype=torch.int32)  # the last is padding

    near(attend(TritonAttention(target), BASE, q, kv, paged, None, device)[:2], expected[:2])


def test_layers_share_a_schedule_and_leave_its_counters_ready(  # type: ignore[no-untyped-def]
    target, device, generator
) -> None:
    paged = paged_batch([1, 1], [700, 64], 16, generator=generator)
    kv, q = torch.randn(764, 2, 2, 32, generator=generator), torch.randn(2, 4, 32)
    kernel = TritonAttention(target)
    op = kernel.build(BASE)
    first = attend(kernel, BASE, q, kv, paged, None, device)
    cache = torch.zeros(op.cache_shape(paged.num_blocks), dtype=torch.float16)
    cache[paged.history // 16, :, paged.history % 16] = kv.half()
    cache = cache.to(device)
    paged.attention.memo.clear()
    for _ in range(3):
        assert torch.equal(op(q.half().to(device), cache, paged.attention), first)
    (launches,) = paged.attention.memo.values()
    assert all(not launch.counters.any() for launch in launches)  # type: ignore[attr-defined]


def test_a_step_of_no_tokens_gives_none(target, device, generator) -> None:  # type: ignore[no-untyped-def]
    paged = paged_batch([], [], 16, generator=generator)
    op = TritonAttention(target).build(BASE)
    cache = torch.zeros(op.cache_shape(2), dtype=torch.float16, device=device)
    q = torch.empty(0, 4, 32, dtype=torch.float16, device=device)
    assert op(q, cache, paged.attention).shape == (0, 4, 32)


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        (replace(BASE, dtype="float64"), "float64"),
        (replace(BASE, kv_dtype="int8"), "int8"),
        (replace(BASE, head_dim=1024), "head_dim must be 16 to 512, not 1024"),
        (replace(BASE, num_heads=5), "5 query heads"),
    ],
)
def test_a_refusal_says_why(spec, told, target) -> None:  # type: ignore[no-untyped-def]
    answer = TritonAttention(target).supports(spec)
    assert isinstance(answer, Unsupported)
    assert told in answer.reason
