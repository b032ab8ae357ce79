from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton", reason="needs triton")
from allmetal_triton.ops.float8 import round_groups, round_tokens
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


@pytest.mark.parametrize("channels", [128, 5000])
def test_groups_are_rounded_as_torch_rounds_them(  # type: ignore[no-untyped-def]
    channels: int, generator, target, device
) -> None:
    x = torch.randn(4, channels + 8, generator=generator).half().to(device)[:, :channels]
    x *= torch.tensor([1e-3, 1.0, 1e3, 0.0], device=device)[:, None]
    x[:, 7] *= 5

    y, scale = round_groups(x, torch.float8_e4m3fn, 128, 16, target.launch_options)

    groups = -(-channels // 128)
    assert (scale.shape, scale.stride()) == ((16, groups), (1, 16))
    wide = torch.nn.functional.pad(x.float(), (0, -channels % 128)).view(4, groups, 128)
    largest = wide.abs().amax(2)
    assert torch.allclose(scale[:3], largest[:3] / 448, rtol=1e-6)
    exact = wide * 448 / largest[..., None].clamp_min(1e-30)
    expected = exact.clamp(-448, 448).to(torch.float8_e4m3fn).float().view(4, -1)
    assert torch.equal(y[:4].float(), expected[:, :channels])


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs the interpreter")
@pytest.mark.parametrize("kind", FNUZ)
def test_codes_that_mean_half_stand_for_the_same_values(kind: str, generator, target) -> None:  # type: ignore[no-untyped-def]
    x = torch.randn(4, 300, generator=generator).half()
    usual, scale = round_tokens(x, getattr(torch, kind), target.launch_options)

    narrow = getattr(torch, FNUZ[kind])
    half, twice = round_tokens(x, narrow, target.launch_options, halved=True)

    assert torch.equal(twice, 2 * scale)
    assert torch.equal(half.float() * twice, usual.float() * scale)


def test_tokens_become_integers_as_the_reference_makes_them(generator, target, device) -> None:  # type: ignore[no-untyped-def]
    x = torch.randn(4, 300, generator=generator).half()
    x[1, :5] = torch.tensor([127.0, 0.5, 1.5, -2.5, -0.5])  # halves go to the even neighbour
    x[1, 5:] = 0

    y, scale = round_tokens(x.to(device), torch.int8, target.launch_options)

    exact = x.float() * 127 / x.float().abs().amax(1, keepdim=True)
    assert (y.cpu() - exact).abs().max() <= 0.5 + 1e-5
    assert y[1, :5].tolist() == [127, 0, 2, -2, 0]
    assert torch.allclose(scale.cpu(), x.float().abs().amax(1, keepdim=True) / 127)
