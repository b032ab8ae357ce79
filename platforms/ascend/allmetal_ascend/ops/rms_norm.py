"""Root mean square norm by `npu_rms_norm`, `npu_add_rms_norm` and `npu_gemma_rms_norm`.

The operators compute in float32 and do not say whether they round before the weight is applied.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from allmetal.platform.contract import Support, Supported, Unsupported
from allmetal.platform.specs import RMSNormOp, RMSNormSpec
from allmetal_ascend.chips import Chip
from allmetal_ascend.ops.dtypes import FLOAT, refuse_dtype


@dataclass(frozen=True, slots=True)
class NpuRMSNorm:
    chip: Chip
    name: str = "npu_rms_norm"

    def supports(self, spec: RMSNormSpec) -> Support:
        if refused := refuse_dtype(self.chip, spec.dtype, FLOAT):
            return Unsupported(refused)
        if spec.offset not in (0.0, 1.0):
            return Unsupported(f"offset must be 0 or 1, not {spec.offset:g}")
        if spec.offset and not self.chip.fused_attention:
            return Unsupported(f"{self.chip.arch} has no npu_gemma_rms_norm, which adds an offset")
        return Supported()

    def build(self, spec: RMSNormSpec) -> RMSNormOp:
        return _RMSNorm(spec)


@dataclass(frozen=True, slots=True)
class _RMSNorm:
    spec: RMSNormSpec

    def __call__(
        self, x: torch.Tensor, weight: torch.Tensor, residual: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        assert (residual is not None) == self.spec.residual
        if not x.shape[0]:
            return torch.empty_like(x), x
        ops, eps = torch.ops.npu, self.spec.eps
        weight = weight.to(x.dtype)
        if residual is None:
            return self.normalise(x, weight), x
        if self.spec.offset:
            s = x + residual
            return self.normalise(s, weight), s
        y, _, s = ops.npu_add_rms_norm(x.contiguous(), residual.contiguous(), weight, eps)
        return y, s

    def normalise(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """x [..., C], and no row of none."""
        op = torch.ops.npu.npu_gemma_rms_norm if self.spec.offset else torch.ops.npu.npu_rms_norm
        y: torch.Tensor = op(x.contiguous(), weight, self.spec.eps)[0]
        return y
