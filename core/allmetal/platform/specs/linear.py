"""Matrix products, and the formats weights are stored in.

Legend: T tokens, C channels, N outputs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Protocol, TypeAlias

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class DenseWeight:
    """`weight` [N, C] in `dtype`."""

    kind: ClassVar[str] = "dense"
    dtype: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GGUFWeight:
    """`weight` [N, bytes] uint8: rows of GGML blocks along C.  Source: the ggml format tables.

    Kernels may round 16-bit activations to 8 bits, with a scale for each 32 channels or fewer, as
    GGML itself does with more; outliers must not cost their neighbours' precision.
    """

    kind: ClassVar[str] = "gguf"
    type: str  # "Q4_0", "Q4_K", ...


@dataclass(frozen=True, slots=True, kw_only=True)
class IntWeight:
    """`weight` [N, C] int8 holding `bits`-bit values, `scale` [N, C / group_size] float32.

    `group_size` 0 is one scale a row.  Symmetric: value * scale.
    `act_dtype` "int8": activations are quantised per token while running; else weight only.
    """

    kind: ClassVar[str] = "int"
    bits: int = 8
    group_size: int = 0
    act_dtype: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Float8Weight:
    """`weight` [N, C] in `dtype`, `scale` [N, 1] float32: value * scale.

    `block` (rows, columns): values of a block share a scale, and `scale` is [N / rows, C / columns]
    rounded up.  `act_dtype`: activations are rounded to that type while running, with a scale a
    token, or with blocks one for `columns` channels of it, that makes its largest magnitude the
    type's; else weight only.
    """

    kind: ClassVar[str] = "float8"
    dtype: str = "float8_e4m3fn"
    act_dtype: str | None = None
    block: tuple[int, int] | None = None


WeightFormat: TypeAlias = DenseWeight | GGUFWeight | IntWeight | Float8Weight


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearSpec:
    """y = x W^T + b with W [N, C] stored as `weight` says; x and y are of `dtype`."""

    family: ClassVar[str] = "linear"
    dtype: str
    in_features: int
    out_features: int
    bias: bool
    weight: WeightFormat


PackedWeight: TypeAlias = object
"""A weight in a kernel's own layout: only the op that packed it reads it."""


class LinearOp(Protocol):
    """x [T, C] -> y [T, N]."""

    def pack(self, weights: Mapping[str, torch.Tensor]) -> PackedWeight:
        """Checkpoint layout to kernel layout, once at load; may keep or copy the tensors."""
        ...

    def __call__(
        self, x: torch.Tensor, weight: PackedWeight, bias: torch.Tensor | None
    ) -> torch.Tensor: ...
