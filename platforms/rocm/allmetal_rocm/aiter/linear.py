"""Linear layers with weights and activations in int8 by aiter's Triton kernel.

Tokens are rounded in a launch of their own.  2 T N C operations, of which the matrix unit does
twice as many a second as in bfloat16.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from allmetal.platform.contract import Support, Supported, Unsupported
from allmetal.platform.specs import IntWeight, LinearOp, LinearSpec, PackedWeight
from allmetal_rocm.aiter import package
from allmetal_triton.ops.float8 import round_tokens
from allmetal_triton.target import Target

_LARGEST = 32768
"""A token is held in the registers of one program while it is rounded."""


@dataclass(frozen=True, slots=True)
class AiterInt8Linear:
    arch: str
    target: Target
    name: str = "aiter_int8"

    def supports(self, spec: LinearSpec) -> Support:
        if reason := package.refuse(self.arch, spec.dtype):
            return Unsupported(reason)
        weight = spec.weight
        if not isinstance(weight, IntWeight):
            return Unsupported(f"takes weights in int8, not {weight.kind}")
        if (weight.bits, weight.group_size, weight.act_dtype) != (8, 0, "int8"):
            return Unsupported(
                "takes 8 bits, a scale a row and activations in int8, not"
                f" {weight.bits} bits in groups of {weight.group_size} and"
                f" {weight.act_dtype or spec.dtype}"
            )
        if spec.in_features > _LARGEST:
            return Unsupported(f"in_features must be at most {_LARGEST}, not {spec.in_features}")
        return Supported(rank=5)

    def build(self, spec: LinearSpec) -> LinearOp:
        return _Op(spec, self.target)


class _Op:
    def __init__(self, spec: LinearSpec, target: Target) -> None:
        self._spec, self._options = spec, target.launch_options
        self._multiply = package.function("aiter.ops.triton.gemm_a8w8", "gemm_a8w8")

    def pack(self, weights: Mapping[str, torch.Tensor]) -> PackedWeight:
        return weights["weight"].contiguous(), weights["scale"].float().view(1, -1).contiguous()

    def __call__(
        self, x: torch.Tensor, weight: PackedWeight, bias: torch.Tensor | None
    ) -> torch.Tensor:
        assert isinstance(weight, tuple)
        if not x.shape[0]:
            return x.new_empty((0, self._spec.out_features))
        rounded, scale = round_tokens(x, torch.int8, self._options)
        y: torch.Tensor = self._multiply(
            rounded, weight[0], scale, weight[1], bias=bias, dtype=x.dtype
        )
        return y
