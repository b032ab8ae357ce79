"""Root mean square norms, alone or after adding the residual stream."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from allmetal.platform.specs import RMSNormOp, RMSNormSpec
from allmetal_models.layers.scope import Scope


@dataclass(frozen=True, slots=True, kw_only=True)
class Norm:
    """How a family states its norm.  `cast_before_weight` and `offset` are those of the spec."""

    dim: int
    eps: float
    offset: float = 0.0
    cast_before_weight: bool = False

    def bind(self, scope: Scope, *, residual: bool) -> RMSNormOp:
        return scope.ctx.kernels.bind(
            RMSNormSpec(
                dtype=scope.ctx.dtype_name,
                dim=self.dim,
                eps=self.eps,
                offset=self.offset,
                residual=residual,
                cast_before_weight=self.cast_before_weight,
            )
        )


class RMSNorm:
    """x [T, C] -> norm(x)."""

    def __init__(self, at: Scope, norm: Norm) -> None:
        self.weight = at.parameter("weight", (norm.dim,))
        self._op = norm.bind(at, residual=False)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self._op(x, self.weight)[0]


class AddRMSNorm:
    """(x, stream) -> (norm(x + stream), x + stream): opens a branch off the residual stream.

    The `first` norm of a model has no stream yet and starts it with x.
    """

    def __init__(self, at: Scope, norm: Norm, *, first: bool = False) -> None:
        self.weight = at.parameter("weight", (norm.dim,))
        self._op = norm.bind(at, residual=not first)

    def __call__(
        self, x: torch.Tensor, stream: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return self._op(x, self.weight, stream)
