"""Products with 8-bit integer weights, one scale a row, applied to the result."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from allmetal.platform.contract import Support, Supported, Unsupported
from allmetal.platform.specs import IntWeight, LinearOp, LinearSpec, PackedWeight


@dataclass(frozen=True, slots=True)
class AcmeInt8:
    name: str = "acme_int8"

    def supports(self, spec: LinearSpec) -> Support:
        if not isinstance(spec.weight, IntWeight):
            return Unsupported(f"the weight must be int, not {spec.weight.kind}")
        if spec.weight != IntWeight(bits=8, group_size=0):
            return Unsupported("the weight must be int8 with one scale a row")
        if spec.dtype != "float32":
            return Unsupported(f"dtype must be float32, not {spec.dtype}")
        return Supported()

    def build(self, spec: LinearSpec) -> LinearOp:
        return Int8Linear()


@dataclass(frozen=True, slots=True)
class Packed:
    """`columns` [C, N] int8: the device reads along N."""

    columns: torch.Tensor
    scale: torch.Tensor  # [N]


class Int8Linear:
    def pack(self, weights: Mapping[str, torch.Tensor]) -> PackedWeight:
        columns = weights["weight"].t().contiguous()
        return Packed(columns, weights["scale"].flatten().clone())

    def __call__(
        self, x: torch.Tensor, weight: PackedWeight, bias: torch.Tensor | None
    ) -> torch.Tensor:
        assert isinstance(weight, Packed)
        y = (x @ weight.columns.to(x.dtype)) * weight.scale
        return y if bias is None else y + bias
