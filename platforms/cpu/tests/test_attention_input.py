from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from allmetal.platform import reference
from allmetal.platform.specs import AttentionInputSpec

BASE = AttentionInputSpec(
    dtype="bfloat16",
    kv_dtype="bfloat16",
    num_heads=4,
    num_kv_heads=2,
    head_dim=64,
    block_size=16,
    kv_layout="hnd",
    rotary_dim=64,
)
SPECS = {
    "plain": BASE,
    "float32": replace(BASE, dtype="float32", kv_dtype="float32"),
    "head_norm": replace(BASE, qk_norm="head", head_dim=128, rotary_dim=128),
    "head_norm_with_offset": replace(BASE, qk_norm="head", norm_offset=1.0),
    "full_norm": replace(BASE, qk_norm="full"),
    "no_rotation": replace(BASE, rotary_dim=0, qk_norm="head"),
    "part_rotation": replace(BASE, rotary_dim=20, dtype="float32", kv_dtype="float32"),
    "interleaved": replace(BASE, interleaved=True, rotary_dim=32),
    "odd_sizes": replace(
        BASE, num_heads=3, num_kv_heads=1, head_dim=36, rotary_dim=36, block_size=5
    ),
}


@pytest.mark.parametrize("num_tokens", [0, 1, 7, 40])
@pytest.mark.parametrize("name", SPECS)
def test_attention_input_agrees_with_float64(  # type: ignore[no-untyped-def]
    name, num_tokens, generator, accepting, near
) -> None:
    spec = SPECS[name]
    dtype = getattr(torch, spec.dtype)
    heads = spec.num_heads + 2 * spec.num_kv_heads
    qkv = torch.randn(num_tokens, heads * spec.head_dim, generator=generator).to(dtype)
    positions = torch.randint(0, 500, (num_tokens,), generator=generator)
    angles = torch.rand(500, spec.rotary_dim // 2, generator=generator) * 500
    cos_sin = torch.cat((angles.cos(), angles.sin()), dim=-1) if spec.rotary_dim else None
    num_blocks = 2 + num_tokens // spec.block_size
    slots = torch.randperm(num_blocks * spec.block_size, generator=generator)[:num_tokens]
    per_head = spec.qk_norm == "head"
    weights = [
        None
        if spec.qk_norm == "none"
        else torch.randn(spec.head_dim * (1 if per_head else n), generator=generator).to(dtype)
        for n in (spec.num_heads, spec.num_kv_heads)
    ]
    shape = (num_blocks, 2, spec.num_kv_heads, spec.block_size, spec.head_dim)
    before = torch.randn(shape, generator=generator).to(dtype)

    (exact,) = reference.kernels()["attention_input"]
    expected_cache = before.double()
    op = exact.build(replace(spec, dtype="float64", kv_dtype="float64"))
    wide = [None if w is None else w.double() for w in weights]
    expected = op(qkv.double(), positions, cos_sin, expected_cache, slots, *wide)

    kernels = accepting(spec)
    assert kernels
    for kernel in kernels:
        print(kernel.name)
        cache = before.clone()
        actual = kernel.build(spec)(qkv, positions, cos_sin, cache, slots, *weights)
        assert actual.is_contiguous()
        near(actual, expected)
        near(cache, expected_cache)
