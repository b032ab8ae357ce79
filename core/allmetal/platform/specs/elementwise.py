"""Norms and activations.

Legend: T tokens, C channels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, Protocol, TypeAlias

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class RMSNormSpec:
    """y = x / sqrt(mean(x^2) + eps) * (weight + offset), computed in float32.

    With `residual`, s = x + residual comes first and is returned beside y.
    `cast_before_weight`: the normalised value is rounded to `dtype` before the weight is applied
    (families that state the norm so get bit-equal results).
    """

    family: ClassVar[str] = "rms_norm"
    dtype: str
    dim: int
    eps: float
    offset: float = 0.0
    residual: bool = False
    cast_before_weight: bool = False


class RMSNormOp(Protocol):
    """x [T, C] -> (y [T, C], s [T, C]); without residual s is x itself."""

    def __call__(
        self, x: torch.Tensor, weight: torch.Tensor, residual: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]: ...


Activation: TypeAlias = Literal["silu", "gelu", "gelu_tanh", "relu"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GatedActivationSpec:
    """act(x[:, :dim]) * x[:, dim:]."""

    family: ClassVar[str] = "gated_activation"
    dtype: str
    dim: int
    activation: Activation


class GatedActivationOp(Protocol):
    """x [T, 2 * dim] -> y [T, dim]."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor: ...
