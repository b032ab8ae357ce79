"""Products with 8-bit integer weights.

With activations in 8 bits too, `npu_dynamic_quant` and `npu_quant_matmul` over a weight in the
matrix unit's own order of elements; else `npu_weight_quant_batchmatmul`.

Legend: T tokens, C channels, N outputs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from allmetal.platform.contract import Support, Supported, Unsupported
from allmetal.platform.specs import IntWeight, LinearOp, LinearSpec, PackedWeight
from allmetal_ascend.chips import Chip
from allmetal_ascend.ops.dtypes import HALF, refuse_dtype

FRACTAL_NZ = 29
"""The format in which the matrix unit reads a weight: blocks of 16 rows by 32 bytes."""
_WIDEST = 65_535


@dataclass(frozen=True, slots=True)
class NpuInt8:
    chip: Chip
    name: str = "npu_int8"

    def supports(self, spec: LinearSpec) -> Support:
        weight = spec.weight
        if not isinstance(weight, IntWeight):
            return Unsupported(f"the weight must be int, not {weight.kind}")
        if not self.chip.per_token:
            return Unsupported(f"{self.chip.arch} takes no scale a token in npu_quant_matmul")
        refused = refuse_dtype(self.chip, spec.dtype, HALF) or _refuse(spec, weight)
        return Supported() if refused is None else Unsupported(refused)

    def build(self, spec: LinearSpec) -> LinearOp:
        assert isinstance(spec.weight, IntWeight)
        if spec.weight.act_dtype == "int8":
            return _BothInt8(getattr(torch, spec.dtype))
        return _WeightInt8(getattr(torch, spec.dtype), spec.weight.group_size)


def _refuse(spec: LinearSpec, weight: IntWeight) -> str | None:
    if weight.bits != 8:
        return f"bits must be 8, not {weight.bits}"
    if max(spec.in_features, spec.out_features) > _WIDEST:
        return f"in_features and out_features must be at most {_WIDEST}"
    if weight.act_dtype not in (None, "int8"):
        return f"act_dtype must be None or int8, not {weight.act_dtype}"
    if not weight.group_size:
        return None
    if weight.act_dtype is not None:
        return "activations in int8 want one scale a row of the weight, and no groups"
    if weight.group_size % 32 or not 32 <= weight.group_size < spec.in_features:
        return "group_size must be a multiple of 32, and less than in_features"
    return None


@dataclass(frozen=True, slots=True)
class Packed:
    """`weight` [C, N] int8; `scale` [N], or [C / group, N]."""

    weight: torch.Tensor
    scale: torch.Tensor


def quantise(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """x [T, C] -> int8 [T, C] and its scales [T] float32."""
    y: tuple[torch.Tensor, torch.Tensor] = torch.ops.npu.npu_dynamic_quant(x)
    return y


@dataclass(frozen=True, slots=True)
class _BothInt8:
    dtype: torch.dtype

    def pack(self, weights: Mapping[str, torch.Tensor]) -> PackedWeight:
        columns = weights["weight"].t().contiguous()
        ordered = torch.ops.npu.npu_format_cast(columns, FRACTAL_NZ)
        return Packed(ordered, weights["scale"].flatten().to(torch.float32))

    def __call__(
        self, x: torch.Tensor, weight: PackedWeight, bias: torch.Tensor | None
    ) -> torch.Tensor:
        assert isinstance(weight, Packed)
        if not x.shape[0]:
            return x.new_empty(0, weight.scale.shape[0])
        rows, scale = quantise(x)
        y: torch.Tensor = torch.ops.npu.npu_quant_matmul(
            rows,
            weight.weight,
            weight.scale,
            pertoken_scale=scale,
            bias=None if bias is None else bias.to(self.dtype),
            output_dtype=self.dtype,
        )
        return y


@dataclass(frozen=True, slots=True)
class _WeightInt8:
    dtype: torch.dtype
    group_size: int

    def pack(self, weights: Mapping[str, torch.Tensor]) -> PackedWeight:
        """The rows stay where they are: with a scale a row the operator prefers them so."""
        scale = weights["scale"].to(self.dtype)
        scale = scale.t().contiguous() if self.group_size else scale.flatten()
        return Packed(weights["weight"].t(), scale)

    def __call__(
        self, x: torch.Tensor, weight: PackedWeight, bias: torch.Tensor | None
    ) -> torch.Tensor:
        assert isinstance(weight, Packed)
        if not x.shape[0]:
            return x.new_empty(0, weight.weight.shape[1])
        y: torch.Tensor = torch.ops.npu.npu_weight_quant_batchmatmul(
            x.contiguous(), weight.weight, weight.scale, antiquant_group_size=self.group_size
        )
        return y if bias is None else y + bias.to(self.dtype)
