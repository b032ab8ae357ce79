"""Norms and activations."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from allmetal.platform.contract import Support, Supported, Unsupported
from allmetal.platform.specs import (
    GatedActivationOp,
    GatedActivationSpec,
    RMSNormOp,
    RMSNormSpec,
)
from allmetal_xpu.vllm import package

_NORMS = {0.0: "rms_norm", 1.0: "gemma_rms_norm"}
"""By the weight's offset."""
ACTIVATIONS = {
    "silu": "silu_and_mul",
    "gelu": "gelu_and_mul",
    "gelu_tanh": "gelu_tanh_and_mul",
}


@dataclass(frozen=True, slots=True)
class VllmRMSNorm:
    name: str = "vllm_rms_norm"

    def supports(self, spec: RMSNormSpec) -> Support:
        if reason := package.refuse(spec.dtype):
            return Unsupported(reason)
        if spec.residual:
            return Unsupported("its norm with a residual writes over both, which others still read")
        if spec.offset not in _NORMS:
            return Unsupported(f"the weight's offset must be 0 or 1, not {spec.offset}")
        if spec.cast_before_weight:
            return Unsupported("it rounds once, behind the weight")
        return Supported(rank=5)

    def build(self, spec: RMSNormSpec) -> RMSNormOp:
        norm = package.operator("_C", _NORMS[spec.offset])

        def op(
            x: torch.Tensor, weight: torch.Tensor, residual: torch.Tensor | None = None
        ) -> tuple[torch.Tensor, torch.Tensor]:
            assert residual is None
            x = x.contiguous()
            y = torch.empty_like(x)
            if x.shape[0]:
                norm(y, x, weight, spec.eps)
            return y, x

        return op


@dataclass(frozen=True, slots=True)
class VllmGatedActivation:
    name: str = "vllm_gated_activation"

    def supports(self, spec: GatedActivationSpec) -> Support:
        if reason := package.refuse(spec.dtype):
            return Unsupported(reason)
        if spec.activation not in ACTIVATIONS:
            known = ", ".join(ACTIVATIONS)
            return Unsupported(f"activation must be one of {known}, not {spec.activation}")
        return Supported(rank=5)

    def build(self, spec: GatedActivationSpec) -> GatedActivationOp:
        activate = package.operator("_C", ACTIVATIONS[spec.activation])

        def op(x: torch.Tensor) -> torch.Tensor:
            y = torch.empty(x.shape[0], spec.dim, dtype=x.dtype, device=x.device)
            if x.shape[0]:
                activate(y, x.contiguous())
            return y

        return op
