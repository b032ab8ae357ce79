"""Root mean square norm with the residual add before it: each value is read once.

Bytes moved: x and residual in, y and s out; 4 T C elements with a residual, 2 T C without.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton

from allmetal.platform.contract import Support, Supported, Unsupported
from allmetal.platform.specs import RMSNormOp, RMSNormSpec
from allmetal_triton.jit.rms_norm import rms_norm
from allmetal_triton.target import Target, refuse_dtype

_LARGEST = 32768
"""A row is held in the registers of one program."""


@dataclass(frozen=True, slots=True)
class TritonRMSNorm:
    target: Target
    name: str = "triton_rms_norm"

    def supports(self, spec: RMSNormSpec) -> Support:
        if reason := refuse_dtype(self.target, spec.dtype):
            return Unsupported(reason)
        if spec.dim > _LARGEST:
            return Unsupported(f"dim must be at most {_LARGEST}, not {spec.dim}")
        return Supported(rank=10)

    def build(self, spec: RMSNormSpec) -> RMSNormOp:
        block = triton.next_power_of_2(spec.dim)
        # Eight values of two bytes, one load, a thread; a row of one value still takes a warp.
        num_warps = max(1, min(16, block // 256))
        options = self.target.launch_options

        def op(
            x: torch.Tensor, weight: torch.Tensor, residual: torch.Tensor | None = None
        ) -> tuple[torch.Tensor, torch.Tensor]:
            assert (residual is not None) == spec.residual
            y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
            s = x if residual is None else torch.empty_like(y)
            if x.shape[0]:
                rms_norm[(x.shape[0],)](
                    x,
                    residual,
                    weight,
                    y,
                    s,
                    x.stride(0),
                    0 if residual is None else residual.stride(0),
                    EPS=spec.eps,
                    OFFSET=spec.offset,
                    DIM=spec.dim,
                    BLOCK=block,
                    RESIDUAL=spec.residual,
                    CAST_BEFORE_WEIGHT=spec.cast_before_weight,
                    num_warps=num_warps,
                    **options,
                )
            return y, s

        return op
