"""Linear layers in 8 bit floating point on Hopper: few tokens here, many through cuBLAS.

Tokens are rounded in a launch of their own.  Few are bound by reading N C bytes of weights; many by
2 T N C operations, of which the units do twice as many a second as in bfloat16.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from allmetal.platform.contract import Support, Supported, Unsupported
from allmetal.platform.specs import Float8Weight, LinearOp, LinearSpec, PackedWeight
from allmetal_cuda.ops.hopper_linear import MOST_TOKENS, Copied, multiply, plan
from allmetal_triton.ops.float8 import round_tokens
from allmetal_triton.target import Target

_DTYPE = "float8_e4m3fn"
_ALIGNED = 16
_LARGEST = 32768
"""A token is held in the registers of one program while it is rounded."""


@dataclass(frozen=True, slots=True)
class HopperFloat8Linear:
    target: Target
    name: str = "hopper_float8"

    def supports(self, spec: LinearSpec) -> Support:
        weight = spec.weight
        if not isinstance(weight, Float8Weight):
            return Unsupported(f"takes weights in 8-bit floating point, not {weight.kind}")
        if (weight.dtype, weight.act_dtype) != (_DTYPE, _DTYPE):
            return Unsupported(
                f"takes weights and activations in {_DTYPE}, not {weight.dtype} and"
                f" {weight.act_dtype or spec.dtype}"
            )
        if weight.block is not None:
            return Unsupported("takes a scale a row, not one a block")
        if spec.dtype != "bfloat16":
            return Unsupported(f"dtype must be bfloat16, not {spec.dtype}")
        if spec.in_features % _ALIGNED or spec.out_features % _ALIGNED:
            return Unsupported(
                f"in_features and out_features must be multiples of {_ALIGNED}, not"
                f" {spec.in_features} and {spec.out_features}"
            )
        if spec.in_features > _LARGEST:
            return Unsupported(f"in_features must be at most {_LARGEST}, not {spec.in_features}")
        return Supported(rank=5)

    def build(self, spec: LinearSpec) -> LinearOp:
        return _Op(spec, self.target)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Weight:
    copied: Copied
    scale: torch.Tensor


class _Op:
    def __init__(self, spec: LinearSpec, target: Target) -> None:
        self._spec = spec
        self._options = target.launch_options
        self._num_cores = target.num_cores()

    def pack(self, weights: Mapping[str, torch.Tensor]) -> PackedWeight:
        copied = Copied.of(weights["weight"], self._num_cores)
        return _Weight(copied=copied, scale=weights["scale"].view(1, -1).contiguous())

    def __call__(
        self, x: torch.Tensor, weight: PackedWeight, bias: torch.Tensor | None
    ) -> torch.Tensor:
        assert isinstance(weight, _Weight)
        spec, num_tokens = self._spec, x.shape[0]
        if not num_tokens:
            return x.new_empty((0, spec.out_features))
        rounded, scale = round_tokens(x, weight.copied.tensor.dtype, self._options)
        how = None
        if num_tokens <= MOST_TOKENS:
            # As many bytes as half the channels in bfloat16.
            how = plan(spec.in_features // 2, spec.out_features, num_tokens, self._num_cores)
        if how is None:
            y = torch._scaled_mm(
                rounded,
                weight.copied.tensor.t(),
                scale_a=scale,
                scale_b=weight.scale,
                out_dtype=x.dtype,
            )
            return y if bias is None else y + bias
        y = torch.empty((num_tokens, spec.out_features), dtype=x.dtype, device=x.device)
        multiply(rounded, weight.copied, bias, y, how, self._options, (weight.scale, scale))
        return y
