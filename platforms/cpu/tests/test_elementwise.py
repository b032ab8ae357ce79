from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from allmetal.platform import reference
from allmetal.platform.specs import GatedActivationSpec, RMSNormSpec

NORM = RMSNormSpec(dtype="bfloat16", dim=1024, eps=1e-6)
NORMS = {
    "plain": NORM,
    "residual": replace(NORM, residual=True),
    "float32": replace(NORM, dtype="float32", residual=True, dim=640),
    "float16": replace(NORM, dtype="float16"),
    "offset": replace(NORM, offset=1.0, residual=True),
    "cast_before_weight": replace(NORM, cast_before_weight=True, residual=True),
    "odd_dim": replace(NORM, dim=37, residual=True),
    "odd_dim_float32": replace(NORM, dim=19, dtype="float32"),
}


@pytest.mark.parametrize("num_tokens", [0, 1, 5, 33])
@pytest.mark.parametrize("name", NORMS)
def test_rms_norm_agrees_with_float64(name, num_tokens, generator, accepting, near) -> None:  # type: ignore[no-untyped-def]
    spec = NORMS[name]
    dtype = getattr(torch, spec.dtype)
    x = (torch.randn(num_tokens, spec.dim, generator=generator) * 3).to(dtype)
    weight = torch.randn(spec.dim, generator=generator).to(dtype)
    residual = torch.randn(num_tokens, spec.dim, generator=generator).to(dtype)
    (exact,) = reference.kernels()["rms_norm"]
    added = (x + residual if spec.residual else x).double()
    expected, _ = exact.build(replace(spec, dtype="float64", residual=False))(
        added, weight.double()
    )
    kernels = accepting(spec)
    assert kernels
    for kernel in kernels:
        print(kernel.name)
        given = x.clone()
        y, s = kernel.build(spec)(given, weight, residual if spec.residual else None)
        near(y, expected)
        assert torch.equal(s.double(), added)
        assert torch.equal(given, x)


@pytest.mark.parametrize("num_tokens", [0, 1, 9])
@pytest.mark.parametrize("dim", [1, 50, 384])
@pytest.mark.parametrize("activation", ["silu", "gelu", "gelu_tanh", "relu"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_gated_activation_agrees_with_float64(  # type: ignore[no-untyped-def]
    dtype, activation, dim, num_tokens, generator, accepting, near
) -> None:
    spec = GatedActivationSpec(dtype=dtype, dim=dim, activation=activation)
    x = (torch.randn(num_tokens, 2 * dim, generator=generator) * 4).to(getattr(torch, dtype))
    (exact,) = reference.kernels()["gated_activation"]
    expected = exact.build(replace(spec, dtype="float64"))(x.double())
    kernels = accepting(spec)
    assert kernels
    for kernel in kernels:
        print(kernel.name)
        # 1 + erf cancels where the gate is well below zero, and what is left is multiplied by
        # values of 16 at most: a rounding of 1 counts that often.
        near(kernel.build(spec)(x.clone()), expected, scale=4.0)


def test_silu_of_large_values_neither_overflows_nor_turns_to_nan(accepting) -> None:  # type: ignore[no-untyped-def]
    gate = torch.tensor([-1e30, -200.0, -88.0, 0.0, 88.0, 200.0, 1e30])
    x = torch.cat((gate, torch.ones(7)))[None]
    for dtype in (torch.float32, torch.bfloat16):
        spec = GatedActivationSpec(dtype=str(dtype)[6:], dim=7, activation="silu")
        for kernel in accepting(spec):
            y = kernel.build(spec)(x.to(dtype))[0]
            torch.testing.assert_close(y[:3].float(), torch.zeros(3), atol=1e-30, rtol=0)
            assert torch.equal(y[3:], gate[3:].to(dtype))
