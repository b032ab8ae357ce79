"""Residual add and RMS norm in one pass."""

from __future__ import annotations

import torch

from allmetal.platform.specs import RMSNormOp, RMSNormSpec
from allmetal_cpu.native.kernel import NativeKernel, refuse_dtype
from allmetal_cpu.native.library import Library, pointer

_MAX_DIM = 1 << 15


def _refuse(spec: RMSNormSpec) -> str | None:
    if spec.dim > _MAX_DIM:
        return f"dim must be at most {_MAX_DIM}, not {spec.dim}"
    return refuse_dtype(spec.dtype)


class _Op:
    def __init__(self, spec: RMSNormSpec, library: Library) -> None:
        self._run = library.function("rms_norm", spec.dtype)
        self._rest = (spec.dim, spec.eps, spec.offset, int(spec.cast_before_weight))

    def __call__(
        self, x: torch.Tensor, weight: torch.Tensor, residual: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        x = x.contiguous()
        y = torch.empty_like(x)
        residual = None if residual is None else residual.contiguous()
        s = x
        if residual is not None:
            residual = residual.contiguous()
            s = torch.empty_like(x)
        self._run(
            y.data_ptr(),
            s.data_ptr(),
            x.data_ptr(),
            pointer(residual),
            weight.data_ptr(),
            x.shape[0],
            *self._rest,
        )
        return y, s


RMS_NORM: NativeKernel[RMSNormSpec, RMSNormOp] = NativeKernel(_refuse, _Op)
