"""8-bit caches on devices whose codes mean half: the same codes, and the same results."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from allmetal.platform.specs import AttentionInputSpec, AttentionSpec
from allmetal.testing.batches import paged_batch

pytest.importorskip("triton", reason="needs triton")
from allmetal_triton.ops.attention import TritonAttention
from allmetal_triton.ops.attention_input import TritonAttentionInput
from allmetal_triton.target import FNUZ, halved

pytestmark = pytest.mark.skipif(
    torch.cuda.is_available(), reason="needs the interpreter: this GPU has the usual formats"
)


@pytest.fixture
def fnuz(target):  # type: ignore[no-untyped-def]
    return replace(target, fnuz=True, cache_dtypes=("float16", *FNUZ))


def test_only_such_devices_read_codes_as_half(target, fnuz) -> None:  # type: ignore[no-untyped-def]
    assert [halved(target, name) for name in FNUZ] == [None, None]
    assert [halved(fnuz, name) for name in (*FNUZ, "float16")] == [*FNUZ.values(), None]


@pytest.mark.parametrize("kind", FNUZ)
def test_every_value_is_kept_under_the_code_that_other_devices_give_it(kind: str, fnuz) -> None:  # type: ignore[no-untyped-def]
    """Zero excepted, which has no sign there; what is no number or too large differs as it may."""
    dtype = getattr(torch, kind)
    values = torch.arange(256, dtype=torch.uint8).view(dtype).half()
    spec = AttentionInputSpec(
        dtype="float16",
        kv_dtype=kind,
        num_heads=1,
        num_kv_heads=1,
        head_dim=256,
        block_size=16,
        kv_layout="nhd",
        rotary_dim=0,
    )
    cache = torch.zeros(1, 2, 16, 1, 256, dtype=dtype)
    slot = torch.zeros(1, dtype=torch.int64)

    TritonAttentionInput(fnuz).build(spec)(values.repeat(3)[None], slot, None, cache, slot)

    codes = cache[0, :, 0, 0].view(torch.uint8)
    finite = values.isfinite()
    expected = torch.arange(256, dtype=torch.uint8)
    expected[0x80] = 0
    assert torch.equal(codes[0][finite], expected[finite])
    assert torch.equal(codes[1], codes[0])
    most = torch.finfo(dtype).max
    assert codes[0][values == float("inf")].view(dtype).float().eq(most).all()


@pytest.mark.parametrize("kind", FNUZ)
@pytest.mark.parametrize("soft_cap", [None, 3.0])
def test_attention_over_the_same_codes_gives_the_same(  # type: ignore[no-untyped-def]
    kind: str, soft_cap: float | None, target, fnuz, generator
) -> None:
    spec = AttentionSpec(
        dtype="float16",
        kv_dtype=kind,
        num_heads=4,
        num_kv_heads=2,
        head_dim=32,
        block_size=16,
        scale=32**-0.5,
        soft_cap=soft_cap,
    )
    paged = paged_batch([1, 20], [80, 33], 16, generator=generator)
    q = torch.randn(21, 4, 32, generator=generator).half()
    cache = torch.randn(paged.num_blocks, 2, 16, 2, 32, generator=generator) * 4
    cache = cache.to(getattr(torch, kind))
    cache.view(torch.uint8).flatten()[::7] = 0x80  # zeros with a sign

    usual = TritonAttention(replace(target, cache_dtypes=fnuz.cache_dtypes)).build(spec)
    expected = usual(q, cache, paged.attention)
    paged.attention.memo.clear()

    assert torch.equal(TritonAttention(fnuz).build(spec)(q, cache, paged.attention), expected)
