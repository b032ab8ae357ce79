"""The reference attention against torch's own, on contiguous keys and values."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.nn import functional

from allmetal.platform.contract import Supported, Unsupported
from allmetal.platform.reference import kernels
from allmetal.platform.specs import AttentionInputSpec, AttentionSpec
from allmetal.testing.batches import PagedBatch, paged_batch

(KERNEL,) = kernels()["attention"]
(INPUT,) = kernels()["attention_input"]
SPEC = AttentionSpec(
    dtype="float32",
    kv_dtype="float32",
    num_heads=6,
    num_kv_heads=2,
    head_dim=24,
    block_size=8,
    scale=24**-0.5,
)
BATCHES = {
    "prefill": ([7, 20, 1], [7, 20, 1]),
    "decode": ([1, 1, 1], [5, 8, 33]),
    "mixed": ([1, 13, 1, 4], [9, 40, 1, 16]),
    "one token": ([1], [1]),
}


@pytest.fixture
def generator() -> torch.Generator:
    torch.set_num_threads(1)
    return torch.Generator().manual_seed(torch.seed())


def fill(spec: AttentionSpec, paged: PagedBatch, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """A cache full of NaN but for the history's slots, written by hand."""
    cache = torch.full(KERNEL.build(spec).cache_shape(paged.num_blocks), float("nan"))
    for i, slot in enumerate(paged.history.tolist()):
        cache[slot // spec.block_size, 0, slot % spec.block_size] = k[i]
        cache[slot // spec.block_size, 1, slot % spec.block_size] = v[i]
    return cache


def dense(
    spec: AttentionSpec, paged: PagedBatch, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
) -> torch.Tensor:
    """Sequence by sequence in float64 with a mask written out from the definition."""
    outs, first_q, first_k = [], 0, 0
    batch = paged.attention
    for n, s in zip(batch.host_query_lens, batch.host_seq_lens, strict=True):
        q_i = q[first_q : first_q + n].double().transpose(0, 1)
        k_i, v_i = (x[first_k : first_k + s].double().transpose(0, 1) for x in (k, v))
        mask = torch.tensor(
            [
                [p <= s - n + i and (spec.window is None or s - n + i - p < spec.window)
                 for p in range(s)]
                for i in range(n)
            ]
        )  # fmt: skip
        outs.append(_attend(spec, q_i, k_i, v_i, mask).transpose(0, 1))
        first_q, first_k = first_q + n, first_k + s
    return torch.cat(outs)


def _attend(
    spec: AttentionSpec, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor
) -> torch.Tensor:
    if spec.soft_cap is None:
        return functional.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, scale=spec.scale, enable_gqa=True
        )
    group = spec.num_heads // spec.num_kv_heads
    k, v = k.repeat_interleave(group, 0), v.repeat_interleave(group, 0)
    scores = spec.soft_cap * torch.tanh(q @ k.mT * spec.scale / spec.soft_cap)
    return scores.masked_fill(~mask, -torch.inf).softmax(-1) @ v


def problem(
    spec: AttentionSpec, lens: tuple[list[int], list[int]], generator: torch.Generator
) -> tuple[PagedBatch, torch.Tensor, torch.Tensor, torch.Tensor]:
    paged = paged_batch(*lens, spec.block_size, generator=generator)
    num_keys, heads = len(paged.history), (spec.num_kv_heads, spec.head_dim)
    q = torch.randn(len(paged.query_index), spec.num_heads, spec.head_dim, generator=generator)
    k, v = torch.randn(2, num_keys, *heads, generator=generator)
    return paged, q, k, v


@pytest.mark.parametrize("lens", BATCHES.values(), ids=BATCHES.keys())
@pytest.mark.parametrize("window", [None, 1, 6, 100])
@pytest.mark.parametrize("soft_cap", [None, 0.7])
def test_matches_dense_attention_and_reads_no_other_slot(
    generator: torch.Generator,
    lens: tuple[list[int], list[int]],
    window: int | None,
    soft_cap: float | None,
) -> None:
    spec = replace(SPEC, window=window, soft_cap=soft_cap)
    paged, q, k, v = problem(spec, lens, generator)
    got = KERNEL.build(spec)(q, fill(spec, paged, k, v), paged.attention)
    torch.testing.assert_close(got.double(), dense(spec, paged, q, k, v), rtol=1e-5, atol=1e-6)


def test_a_null_block_before_the_window_is_never_read(generator: torch.Generator) -> None:
    spec = replace(SPEC, window=6)
    paged, q, k, v = problem(spec, ([2], [40]), generator)
    expected = KERNEL.build(spec)(q, fill(spec, paged, k, v), paged.attention)
    cache = fill(spec, paged, k, v)
    paged.attention.block_table[0, :4] = 0  # positions 0 .. 31; the window begins at 33
    assert torch.equal(expected, KERNEL.build(spec)(q, cache, paged.attention))


def test_long_prefills_are_computed_in_parts(generator: torch.Generator) -> None:
    paged, q, k, v = problem(SPEC, ([300, 1], [310, 3]), generator)
    got = KERNEL.build(SPEC)(q, fill(SPEC, paged, k, v), paged.attention)
    torch.testing.assert_close(got.double(), dense(SPEC, paged, q, k, v), rtol=1e-5, atol=1e-6)


def test_a_sink_is_one_more_key_without_a_value(generator: torch.Generator) -> None:
    spec = replace(SPEC, sinks=True)
    paged, q, k, v = problem(spec, ([3], [11]), generator)
    sinks = torch.randn(spec.num_heads, generator=generator)
    got = KERNEL.build(spec)(q, fill(spec, paged, k, v), paged.attention, sinks)
    for i in range(3):
        for h in range(spec.num_heads):
            keys, values = (x[: 9 + i, h // 3].double() for x in (k, v))
            e = torch.exp(keys @ q[i, h].double() * spec.scale)
            expected = (e @ values) / (e.sum() + sinks[h].double().exp())
            torch.testing.assert_close(got[i, h].double(), expected, rtol=1e-5, atol=1e-6)


def test_an_empty_batch_gives_no_rows() -> None:
    paged = paged_batch([], [], SPEC.block_size, generator=torch.Generator())
    cache = torch.zeros(KERNEL.build(SPEC).cache_shape(1))
    assert KERNEL.build(SPEC)(torch.empty(0, 6, 24), cache, paged.attention).shape == (0, 6, 24)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64"])
def test_other_dtypes_round_once(generator: torch.Generator, dtype: str) -> None:
    spec = replace(SPEC, dtype=dtype, kv_dtype=dtype)
    paged, q, k, v = problem(spec, BATCHES["mixed"], generator)
    q, k, v = (x.to(getattr(torch, dtype)) for x in (q, k, v))
    cache = fill(spec, paged, k.double(), v.double()).to(q.dtype)
    got = KERNEL.build(spec)(q, cache, paged.attention)
    assert got.dtype == q.dtype
    expected = dense(spec, paged, q, k, v)
    assert (got.double() - expected).norm() / expected.norm() < torch.finfo(q.dtype).eps * 8


@pytest.mark.parametrize("kv_layout", ["nhd", "hnd"])
@pytest.mark.parametrize("kv_dtype", ["float8_e4m3fn", "float8_e5m2"])
def test_a_narrow_cache_holds_the_saturated_cast(
    generator: torch.Generator, kv_dtype: str, kv_layout: str
) -> None:
    spec = replace(SPEC, kv_dtype=kv_dtype)
    paged, q, k, v = problem(spec, BATCHES["mixed"], generator)
    k[0, 0, 0], v[0, 0, 1] = 1e6, -1e6
    write = INPUT.build(
        AttentionInputSpec(
            dtype="float32",
            kv_dtype=kv_dtype,
            num_heads=6,
            num_kv_heads=2,
            head_dim=24,
            block_size=8,
            kv_layout=kv_layout,
            rotary_dim=0,
        )
    )
    narrow = getattr(torch, kv_dtype)
    shape = KERNEL.build(spec).cache_shape(paged.num_blocks)
    if kv_layout == "hnd":
        shape = (shape[0], 2, shape[3], shape[2], shape[4])
    cache = torch.zeros(shape, dtype=narrow)
    qkv = torch.cat([torch.zeros(len(k), 6, 24), k, v], dim=1).flatten(1)
    write(qkv, torch.arange(len(k)), None, cache, paged.history)
    limit = torch.finfo(narrow).max
    k, v = (x.clamp(-limit, limit).to(narrow).float() for x in (k, v))
    if kv_layout == "hnd":
        cache = cache.transpose(2, 3).contiguous()
    got = KERNEL.build(spec)(q, cache, paged.attention)
    torch.testing.assert_close(got.double(), dense(spec, paged, q, k, v), rtol=1e-5, atol=1e-5)


def test_refusals_say_why() -> None:
    assert isinstance(KERNEL.supports(SPEC), Supported)
    for change, why in (
        ({"kv_dtype": "int8"}, "scales"),
        ({"dtype": "int4"}, "dtype"),
        ({"num_kv_heads": 4}, "divide"),
    ):
        answer = KERNEL.supports(replace(SPEC, **change))
        assert isinstance(answer, Unsupported)
        assert why in answer.reason
