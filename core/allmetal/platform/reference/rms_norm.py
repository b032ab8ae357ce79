"""Root mean square norm.  Source: Zhang and Sennrich, arXiv:1910.07467."""

from __future__ import annotations

import torch

from allmetal.platform.reference.kernel import (
    FLOAT_DTYPES,
    ReferenceKernel,
    accumulator,
    refuse_dtype,
)
from allmetal.platform.specs import RMSNormOp, RMSNormSpec


def normalise(x: torch.Tensor, eps: float) -> torch.Tensor:
    """x / sqrt(mean(x^2) + eps) over the last axis, in the type of x."""
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)


def _make(spec: RMSNormSpec) -> RMSNormOp:
    dtype, sums = FLOAT_DTYPES[spec.dtype], accumulator(spec.dtype)

    def rms_norm(
        x: torch.Tensor, weight: torch.Tensor, residual: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        assert (residual is not None) == spec.residual
        s = x if residual is None else x + residual
        normal = normalise(s.to(sums), spec.eps)
        if spec.cast_before_weight:
            normal = normal.to(dtype).to(sums)
        return (normal * (weight.to(sums) + spec.offset)).to(dtype), s

    return rms_norm


KERNEL: ReferenceKernel[RMSNormSpec, RMSNormOp] = ReferenceKernel(
    lambda spec: refuse_dtype(spec.dtype), _make
)
