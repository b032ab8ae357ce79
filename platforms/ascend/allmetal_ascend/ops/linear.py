"""Dense products: torch's own, which torch_npu sends to the matrix unit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch.nn import functional

from allmetal.platform.contract import Support, Supported, Unsupported
from allmetal.platform.specs import DenseWeight, LinearOp, LinearSpec, PackedWeight
from allmetal_ascend.chips import Chip
from allmetal_ascend.ops.dtypes import FLOAT, refuse_dtype


@dataclass(frozen=True, slots=True)
class NpuLinear:
    chip: Chip
    name: str = "npu_linear"

    def supports(self, spec: LinearSpec) -> Support:
        if refused := refuse_dtype(self.chip, spec.dtype, FLOAT):
            return Unsupported(refused)
        if not isinstance(spec.weight, DenseWeight):
            return Unsupported(f"the weight must be dense, not {spec.weight.kind}")
        return Supported()

    def build(self, spec: LinearSpec) -> LinearOp:
        return _Linear(getattr(torch, spec.dtype))


@dataclass(frozen=True, slots=True)
class _Linear:
    dtype: torch.dtype

    def pack(self, weights: Mapping[str, torch.Tensor]) -> PackedWeight:
        return weights["weight"].to(self.dtype)

    def __call__(
        self, x: torch.Tensor, weight: PackedWeight, bias: torch.Tensor | None
    ) -> torch.Tensor:
        assert isinstance(weight, torch.Tensor)
        return functional.linear(x, weight, None if bias is None else bias.to(self.dtype))
