from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from allmetal.platform import reference
from allmetal.platform.specs import AttentionSpec
from allmetal.testing.batches import PagedBatch, paged_batch

BASE = AttentionSpec(
    dtype="bfloat16",
    kv_dtype="bfloat16",
    num_heads=8,
    num_kv_heads=2,
    head_dim=64,
    block_size=16,
    scale=0.125,
)
SPECS = {
    "groups": BASE,
    "float32": replace(BASE, dtype="float32", kv_dtype="float32"),
    "head_dim_128": replace(BASE, head_dim=128, num_heads=4, block_size=32),
    "head_dim_256": replace(BASE, head_dim=256, num_heads=4, num_kv_heads=1),
    "head_dim_80": replace(BASE, head_dim=80, num_heads=2, num_kv_heads=2),
    "head_dim_36_in_blocks_of_5": replace(BASE, head_dim=36, block_size=5, num_heads=6),
    "window": replace(BASE, window=37),
    "window_of_one": replace(BASE, window=1),
    "soft_cap": replace(BASE, soft_cap=2.0),
    "sinks": replace(BASE, sinks=True),
    "all_at_once": replace(
        BASE, window=20, soft_cap=3.0, sinks=True, dtype="float32", kv_dtype="float32"
    ),
    "one_head_for_all": replace(BASE, num_heads=12, num_kv_heads=1),
    "odd_group": replace(BASE, num_heads=21, num_kv_heads=3),
}
BATCHES = {
    "one_token": ([1], [1]),
    "decode": ([1, 1, 1, 1, 1], [1, 17, 300, 64, 65]),
    "prefill": ([70], [70]),
    "chunk_of_a_long_prompt": ([33], [290]),
    "mixed": ([1, 40, 1, 3, 19], [100, 40, 33, 200, 51]),
    "short_tail": ([2, 1, 2], [2, 9, 47]),
}


def run(kernel, spec, q, history_k, history_v, paged: PagedBatch, sinks) -> torch.Tensor:  # type: ignore[no-untyped-def]
    """Lays the history out as the kernel wants it and attends."""
    op = kernel.build(spec)
    dtype = getattr(torch, spec.kv_dtype)
    # What lies in blocks that are not its own must not matter.
    cache = torch.full(op.cache_shape(paged.num_blocks), float("nan"), dtype=dtype)
    view = cache if op.kv_layout == "nhd" else cache.transpose(2, 3)
    block, offset = paged.history // spec.block_size, paged.history % spec.block_size
    view[block, 0, offset] = history_k.to(dtype)
    view[block, 1, offset] = history_v.to(dtype)
    paged.attention.memo.clear()
    return op(q.to(getattr(torch, spec.dtype)), cache, paged.attention, sinks)


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("name", SPECS)
def test_attention_agrees_with_float64(name, batch, generator, accepting, near) -> None:  # type: ignore[no-untyped-def]
    spec = SPECS[name]
    dtype = getattr(torch, spec.dtype)
    query_lens, seq_lens = BATCHES[batch]
    paged = paged_batch(query_lens, seq_lens, spec.block_size, generator=generator)
    shape = (sum(seq_lens), spec.num_kv_heads, spec.head_dim)
    keys = torch.randn(shape, generator=generator).to(dtype)
    values = torch.randn(shape, generator=generator).to(dtype)
    q = torch.randn(sum(query_lens), spec.num_heads, spec.head_dim, generator=generator).to(dtype)
    sinks = torch.randn(spec.num_heads, generator=generator) if spec.sinks else None

    (kernel,) = reference.kernels()["attention"]
    exact = replace(spec, dtype="float64", kv_dtype="float64")
    expected = run(kernel, exact, q, keys, values, paged, sinks)

    kernels = accepting(spec)
    assert kernels
    for kernel in kernels:
        print(kernel.name)
        actual = run(kernel, spec, q, keys, values, paged, sinks)
        near(actual, expected)


def test_a_step_of_no_tokens_gives_none(accepting, generator) -> None:  # type: ignore[no-untyped-def]
    paged = paged_batch([], [], BASE.block_size, generator=generator)
    for kernel in accepting(BASE):
        op = kernel.build(BASE)
        cache = torch.zeros(op.cache_shape(2), dtype=torch.bfloat16)
        paged.attention.memo.clear()
        assert op(torch.empty(0, 8, 64, dtype=torch.bfloat16), cache, paged.attention).shape[0] == 0
