"""Root mean square norm by aiter's kernels from Composable Kernel."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from allmetal.platform.contract import Support, Supported, Unsupported
from allmetal.platform.specs import RMSNormOp, RMSNormSpec
from allmetal_rocm.aiter import package

_LARGEST = 8192
"""Channels there are instances for."""


@dataclass(frozen=True, slots=True)
class AiterRMSNorm:
    arch: str
    name: str = "aiter_rms_norm"

    def supports(self, spec: RMSNormSpec) -> Support:
        if reason := package.refuse(self.arch, spec.dtype):
            return Unsupported(reason)
        if spec.offset:
            return Unsupported("the norm's weight is taken as it is, without an offset")
        if spec.dim > _LARGEST or spec.dim % 8:
            return Unsupported(f"dim must be a multiple of 8 up to {_LARGEST}, not {spec.dim}")
        return Supported(rank=5)

    def build(self, spec: RMSNormSpec) -> RMSNormOp:
        norm = package.function("aiter", "rmsnorm2d_fwd")
        add_and_norm = package.function("aiter", "rmsnorm2d_fwd_with_add")
        rounds_first = int(spec.cast_before_weight)

        def op(
            x: torch.Tensor, weight: torch.Tensor, residual: torch.Tensor | None = None
        ) -> tuple[torch.Tensor, torch.Tensor]:
            assert (residual is not None) == spec.residual
            x = x.contiguous()
            if not x.shape[0]:
                return torch.empty_like(x), x
            if residual is None:
                return norm(x, weight, spec.eps, rounds_first), x
            y, s = torch.empty_like(x), torch.empty_like(x)
            add_and_norm(y, x, residual.contiguous(), s, weight, spec.eps, rounds_first)
            return y, s

        return op
