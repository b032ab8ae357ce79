from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from allmetal.platform import reference
from allmetal.platform.contract import Supported, Unsupported
from allmetal.platform.specs import AttentionInputSpec

pytest.importorskip("triton", reason="needs triton")
from allmetal_triton.ops.attention_input import TritonAttentionInput

BASE = AttentionInputSpec(
    dtype="float16",
    kv_dtype="float16",
    num_heads=4,
    num_kv_heads=2,
    head_dim=64,
    block_size=16,
    kv_layout="nhd",
    rotary_dim=64,
)
SPECS = {
    "plain": BASE,
    "other_layout": replace(BASE, kv_layout="hnd"),
    "head_norm": replace(BASE, qk_norm="head", head_dim=128, rotary_dim=128),
    "head_norm_with_offset": replace(BASE, qk_norm="head", norm_offset=1.0),
    "full_norm": replace(BASE, qk_norm="full"),
    "full_norm_of_few_heads": replace(BASE, qk_norm="full", num_heads=3, num_kv_heads=1),
    "no_rotation": replace(BASE, rotary_dim=0, qk_norm="head"),
    "nothing_but_split": replace(BASE, rotary_dim=0),
    "part_rotation": replace(BASE, rotary_dim=20, qk_norm="head"),
    "interleaved": replace(BASE, interleaved=True, rotary_dim=32),
    "interleaved_odd": replace(BASE, interleaved=True, rotary_dim=24, head_dim=40, qk_norm="full"),
    "odd_sizes": replace(
        BASE, num_heads=3, num_kv_heads=1, head_dim=36, rotary_dim=36, block_size=5
    ),
}


def norm_weights(spec, generator):  # type: ignore[no-untyped-def]
    """(q_weight, k_weight)"""
    if spec.qk_norm == "none":
        return None, None
    each = [1, 1] if spec.qk_norm == "head" else [spec.num_heads, spec.num_kv_heads]
    return [torch.randn(spec.head_dim * n, generator=generator) for n in each]


@pytest.mark.parametrize("num_tokens", [0, 1, 7, 70])
@pytest.mark.parametrize("name", SPECS)
def test_attention_input_agrees_with_float64(  # type: ignore[no-untyped-def]
    name, num_tokens, generator, target, device, near
) -> None:
    check(SPECS[name], num_tokens, generator, target, device, near)


@pytest.mark.parametrize("name", ["plain", "head_norm", "interleaved"])
def test_every_dtype_agrees_with_float64(  # type: ignore[no-untyped-def]
    name, dtype, generator, target, device, near
) -> None:
    spec = replace(SPECS[name], dtype=dtype, kv_dtype=dtype)
    check(spec, 9, generator, target, device, near)


def check(spec, num_tokens, generator, target, device, near) -> None:  # type: ignore[no-untyped-def]
    dtype = getattr(torch, spec.dtype)
    heads = spec.num_heads + 2 * spec.num_kv_heads
    qkv = torch.randn(num_tokens, heads * spec.head_dim, generator=generator).to(dtype)
    positions = torch.randint(0, 500, (num_tokens,), generator=generator)
    angles = torch.rand(500, spec.rotary_dim // 2, generator=generator) * 500
    cos_sin = torch.cat((angles.cos(), angles.sin()), dim=-1) if spec.rotary_dim else None
    num_blocks = 2 + num_tokens // spec.block_size
    slots = torch.randperm(num_blocks * spec.block_size, generator=generator)[:num_tokens]
    weights = [None if w is None else w.to(dtype) for w in norm_weights(spec, generator)]
    inner = (spec.block_size, spec.num_kv_heads)
    if spec.kv_layout == "hnd":
        inner = inner[::-1]
    before = torch.randn(num_blocks, 2, *inner, spec.head_dim, generator=generator).to(dtype)
    (exact,) = reference.kernels()["attention_input"]
    expected_cache = before.double()
    op = exact.build(replace(spec, dtype="float64", kv_dtype="float64"))
    wide = [None if w is None else w.double() for w in weights]
    expected = op(qkv.double(), positions, cos_sin, expected_cache, slots, *wide)
    ours = TritonAttentionInput(target)
    assert isinstance(ours.supports(spec), Supported)
    given = (qkv, positions, cos_sin, before.clone(), slots, *weights)
    given = [None if x is None else x.to(device) for x in given]

    actual = ours.build(spec)(*given)

    assert actual.is_contiguous()
    near(actual, expected)
    near(given[3], expected_cache)


def test_a_token_without_a_slot_is_not_kept(generator, target, device) -> None:  # type: ignore[no-untyped-def]
    qkv = torch.randn(3, 8 * 64, generator=generator).half().to(device)
    cache = torch.zeros(2, 2, 16, 2, 64, dtype=torch.float16, device=device)
    slots = torch.tensor([5, -1, 17], device=device)
    positions = torch.arange(3, device=device)
    spec = replace(BASE, rotary_dim=0)

    q = TritonAttentionInput(target).build(spec)(qkv, positions, None, cache, slots)

    assert torch.equal(q.flatten(1), qkv[:, : 4 * 64])
    written = cache.abs().sum(dim=(1, 3, 4)).nonzero().tolist()
    assert [[0, 5], [1, 1]] == written


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        (replace(BASE, dtype="float64"), "float64"),
        (replace(BASE, kv_layout="mine"), "mine"),
        (replace(BASE, rotary_dim=33), "rotary_dim must be even"),
    ],
)
def test_a_refusal_says_why(spec, told, target) -> None:  # type: ignore[no-untyped-def]
    answer = TritonAttentionInput(target).supports(spec)
    assert isinstance(answer, Unsupported)
    assert told in answer.reason
