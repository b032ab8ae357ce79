from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton", reason="needs triton")
from allmetal_triton.ops.float8 import round_tokens
from allmetal_triton.target import FNUZ


@pytest.mark.parametrize("kind", ["float8_e4m3fn", "float8_e5m2"])
@pytest.mark.parametrize("channels", [1, 48, 5000])
def test_tokens_are_rounded_as_torch_rounds_them(  # type: ignore[no-untyped-def]
    channels: int, kind: str, generator, target, device
) -> None:
    dtype = getattr(torch, kind)
    x = torch.randn(4, channels + 8, generator=generator).half().to(device)[:, :channels]
    x *= torch.tensor([1e-3, 1.0, 1e3, 0.0], device=device)[:, None]

    y, scale = round_tokens(x, dtype, target.launch_options)

    most, largest = torch.finfo(dtype).max, x.float().abs().amax(1, keepdim=True)
    assert torch.allclose(scale[:3], largest[:3] / most, rtol=1e-6)
    assert torch.isfinite(scale).all()
    exact = x.float() * most / largest.clamp_min(1e-30)
    expected = exact.clamp(-most, most).to(dtype)
    assert torch.equal(y.float(), expected.float())


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs the interpreter")
@pytest.mark.parametrize("kind", FNUZ)
def test_codes_that_mean_half_stand_for_the_same_values(kind: str, generator, target) -> None:  # type: ignore[no-untyped-def]
    x = torch.randn(4, 300, generator=generator).half()
    usual, scale = round_tokens(x, getattr(torch, kind), target.launch_options)

    narrow = getattr(torch, FNUZ[kind])
    half, twice = round_tokens(x, narrow, target.launch_options, halved=True)

    assert torch.equal(twice, 2 * scale)
    assert torch.equal(half.float() * twice, usual.float() * scale)
