from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from allmetal.platform import reference
from allmetal.platform.contract import Supported, Unsupported
from allmetal.platform.specs import GatedActivationSpec, RMSNormSpec

pytest.importorskip("triton", reason="needs triton")
from allmetal_triton.ops.gated_activation import TritonGatedActivation
from allmetal_triton.ops.rms_norm import TritonRMSNorm

NORM = RMSNormSpec(dtype="float16", dim=256, eps=1e-6)
NORMS = {
    "plain": NORM,
    "residual": replace(NORM, residual=True),
    "offset": replace(NORM, offset=1.0, residual=True),
    "cast_before_weight": replace(NORM, cast_before_weight=True, residual=True),
    "odd_dim": replace(NORM, dim=37, residual=True),
    "one": replace(NORM, dim=1),
    "long": replace(NORM, dim=5000, residual=True),
}


@pytest.mark.parametrize("num_tokens", [0, 1, 5])
@pytest.mark.parametrize("name", NORMS)
def test_rms_norm_agrees_with_float64(  # type: ignore[no-untyped-def]
    name, num_tokens, dtype, generator, target, device, near
) -> None:
    spec = replace(NORMS[name], dtype=dtype)
    kind = getattr(torch, dtype)
    # Rows of a wider tensor, as a slice of a projection is.
    x = (torch.randn(num_tokens, spec.dim + 3, generator=generator) * 3).to(kind)[:, : spec.dim]
    weight = torch.randn(spec.dim, generator=generator).to(kind)
    residual = torch.randn(num_tokens, spec.dim, generator=generator).to(kind)
    (exact,) = reference.kernels()["rms_norm"]
    added = (x + residual if spec.residual else x).double()
    wide = replace(spec, dtype="float64", residual=False)
    expected, _ = exact.build(wide)(added, weight.double())
    ours = TritonRMSNorm(target)
    assert isinstance(ours.supports(spec), Supported)
    given = x.to(device)

    y, s = ours.build(spec)(
        given, weight.to(device), residual.to(device) if spec.residual else None
    )

    near(y, expected)
    assert torch.equal(s.double().cpu(), added)
    assert torch.equal(given.cpu(), x)


@pytest.mark.parametrize("num_tokens", [0, 1, 3])
@pytest.mark.parametrize("dim", [1, 50, 384, 1500])
@pytest.mark.parametrize("activation", ["silu", "gelu", "gelu_tanh", "relu"])
def test_gated_activation_agrees_with_float64(  # type: ignore[no-untyped-def]
    dtype, activation, dim, num_tokens, generator, target, device, near
) -> None:
    spec = GatedActivationSpec(dtype=dtype, dim=dim, activation=activation)
    x = (torch.randn(num_tokens, 2 * dim, generator=generator) * 4).to(getattr(torch, dtype))
    x[:, ::dim] = 2  # errors are relative to the largest, and by chance all may be tiny
    (exact,) = reference.kernels()["gated_activation"]
    expected = exact.build(replace(spec, dtype="float64"))(x.double())
    ours = TritonGatedActivation(target)
    assert isinstance(ours.supports(spec), Supported)

    near(ours.build(spec)(x.to(device)), expected)


def test_silu_of_large_values_neither_overflows_nor_turns_to_nan(target, device) -> None:  # type: ignore[no-untyped-def]
    gate = torch.tensor([-1e30, -200.0, -88.0, 0.0, 88.0, 200.0, 1e30])
    x = torch.cat((gate, torch.ones(7)))[None].to(device)
    spec = GatedActivationSpec(dtype="float32", dim=7, activation="silu")
    y = TritonGatedActivation(target).build(spec)(x)[0].cpu()
    torch.testing.assert_close(y[:3], torch.zeros(3), atol=1e-30, rtol=0)
    assert torch.equal(y[3:], gate[3:])


def test_refusals_say_why(target) -> None:  # type: ignore[no-untyped-def]
    answer = TritonRMSNorm(target).supports(replace(NORM, dim=1 << 20))
    assert isinstance(answer, Unsupported)
    assert "dim must be at most" in answer.reason
    answer = TritonGatedActivation(target).supports(
        GatedActivationSpec(dtype="float64", dim=8, activation="silu")
    )
    assert isinstance(answer, Unsupported)
    assert "float64" in answer.reason
