"""The reference norm and activations against transformers' modules and torch's functions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from transformers.activations import ACT2FN
from transformers.models.gemma3.modeling_gemma3 import Gemma3RMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from allmetal.platform.contract import Unsupported
from allmetal.platform.reference import kernels
from allmetal.platform.specs import GatedActivationSpec, RMSNormSpec

(NORM,) = kernels()["rms_norm"]
(ACTIVATION,) = kernels()["gated_activation"]
DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def named(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


@pytest.mark.parametrize("dtype", DTYPES, ids=named)
@pytest.mark.parametrize(
    ("module", "style"),
    [(LlamaRMSNorm, {"cast_before_weight": True}), (Gemma3RMSNorm, {"offset": 1.0})],
)
@pytest.mark.parametrize("num_tokens", [0, 1, 17])
def test_norm_is_bit_equal_to_transformers(
    module: type[torch.nn.Module], style: dict[str, Any], dtype: torch.dtype, num_tokens: int
) -> None:
    dim = 37
    norm = module(dim, 1e-5).to(dtype)
    torch.nn.init.normal_(norm.weight)
    spec = RMSNormSpec(dtype=named(dtype), dim=dim, eps=1e-5, **style)
    x, residual = torch.randn(2, num_tokens, dim, dtype=dtype)
    with torch.no_grad():
        y, s = NORM.build(spec)(x, norm.weight)
        assert s is x
        assert torch.equal(y, norm(x))
        y, s = NORM.build(replace(spec, residual=True))(x, norm.weight, residual)
        assert torch.equal(s, x + residual)
        assert torch.equal(y, norm(x + residual))


def test_the_weight_is_applied_before_or_after_rounding_as_told() -> None:
    """With a weight that bfloat16 cannot carry exactly through two roundings, the two differ."""
    x, weight = torch.randn(64, 128).bfloat16(), torch.rand(128).bfloat16() + 0.5
    spec = RMSNormSpec(dtype="bfloat16", dim=128, eps=1e-6)
    once, _ = NORM.build(spec)(x, weight)
    twice, _ = NORM.build(replace(spec, cast_before_weight=True))(x, weight)
    exact = x.double() / (x.double().square().mean(-1, keepdim=True) + 1e-6).sqrt() * weight
    assert (once != twice).any()
    assert (once - exact).norm() < (twice - exact).norm()


@pytest.mark.parametrize("dtype", DTYPES, ids=named)
@pytest.mark.parametrize(
    ("ours", "theirs"),
    [("silu", "silu"), ("gelu", "gelu"), ("gelu_tanh", "gelu_pytorch_tanh"), ("relu", "relu")],
)
def test_activations_are_those_of_transformers(ours: Any, theirs: str, dtype: torch.dtype) -> None:
    spec = GatedActivationSpec(dtype=named(dtype), dim=33, activation=ours)
    for num_tokens in (0, 1, 5):
        x = 3 * torch.randn(num_tokens, 66, dtype=dtype)
        gate, up = x.double().chunk(2, dim=-1)
        expected = (ACT2FN[theirs](gate) * up).to(dtype)
        got = ACTIVATION.build(spec)(x)
        assert got.dtype == dtype
        torch.testing.assert_close(got, expected, rtol=2 * torch.finfo(dtype).eps, atol=1e-5)


def test_refusals_say_why() -> None:
    unknown: Any = "swish"
    for kernel, spec, why in (
        (NORM, RMSNormSpec(dtype="int8", dim=4, eps=1e-6), "dtype must be one of"),
        (ACTIVATION, GatedActivationSpec(dtype="float32", dim=4, activation=unknown), "swish"),
    ):
        answer = kernel.supports(spec)
        assert isinstance(answer, Unsupported)
        assert why in answer.reason
