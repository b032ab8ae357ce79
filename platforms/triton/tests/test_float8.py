from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton", reason="needs triton")
from allmetal_triton.ops.float8 import round_tokens


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU that rounds to e4m3")
@pytest.mark.parametrize("channels", [1, 48, 5000])
def test_tokens_are_rounded_as_torch_rounds_them(channels: int, generator, target) -> None:  # type: ignore[no-untyped-def]
    x = torch.randn(4, channels + 8, generator=generator).bfloat16().cuda()[:, :channels]
    x *= torch.tensor([1e-3, 1.0, 1e3, 0.0], device="cuda")[:, None]

    y, scale = round_tokens(x, torch.float8_e4m3fn, target.launch_options)

    largest = x.float().abs().amax(1, keepdim=True)
    assert torch.allclose(scale[:3], largest[:3] / 448, rtol=1e-6)
    assert torch.isfinite(scale).all()
    exact = x.float() * 448 / largest.clamp_min(1e-30)
    expected = exact.clamp(-448, 448).to(torch.float8_e4m3fn)
    assert torch.equal(y.float(), expected.float())
