"""RMS norm with torch's operators."""

from __future__ import annotations

import torch

from allmetal.platform.contract import Support, Supported
from allmetal.platform.specs import RMSNormOp, RMSNormSpec


class TorchRMSNorm:
    name = "torch"

    def supports(self, spec: RMSNormSpec) -> Support:
        return Supported(rank=20)

    def build(self, spec: RMSNormSpec) -> RMSNormOp:
        return _Op(spec)


class _Op:
    def __init__(self, spec: RMSNormSpec) -> None:
        self._spec = spec

    def __call__(
        self, x: torch.Tensor, weight: torch.Tensor, residual: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        s = x if residual is None else x + residual
        spec = self._spec
        return rms_norm(s, weight, spec.eps, spec.offset, spec.cast_before_weight), s


def rms_norm(
    x: torch.Tensor, weight: torch.Tensor, eps: float, offset: float, cast_before_weight: bool
) -> torch.Tensor:
    """Over the last dimension, in float32; `weight + offset` scales."""
    wide = x.float()
    y = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True).add_(eps))
    if cast_before_weight:
        y = y.to(x.dtype)
        return (y * (weight + offset if offset else weight)).to(x.dtype)
    scale = weight.float()
    return (y * (scale + offset if offset else scale)).to(x.dtype)
