"""Linear layers with a scale for each block of 128 x 128 weights, through cuBLAS on Hopper.

Groups of 128 channels of a token are rounded in a launch of their own.  Few tokens are bound by
reading N C bytes of weights, many by 2 T N C operations.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from allmetal.platform.contract import Support, Supported, Unsupported
from allmetal.platform.specs import Float8Weight, LinearOp, LinearSpec, PackedWeight
from allmetal_triton.ops.float8 import round_groups
from allmetal_triton.target import Target

_DTYPE = "float8_e4m3fn"
_SIZE = 128
_SINCE = (12, 9)
"""CUDA's version whose cuBLAS has these scales."""
_ROWS = 16
"""Tokens come in multiples of it: cuBLAS wants rows of scales to begin at 16 bytes."""
_CHANNELS = 4 * _SIZE
"""Channels come in multiples of it: so many scales are 16 bytes, and torch takes no others."""


@dataclass(frozen=True, slots=True)
class HopperFloat8Blocks:
    target: Target
    name: str = "hopper_float8_blocks"

    def supports(self, spec: LinearSpec) -> Support:
        weight = spec.weight
        if not isinstance(weight, Float8Weight):
            return Unsupported(f"takes weights in 8-bit floating point, not {weight.kind}")
        if weight.block != (_SIZE, _SIZE):
            return Unsupported(f"takes a scale for {_SIZE} x {_SIZE} weights")
        if (weight.dtype, weight.act_dtype) != (_DTYPE, _DTYPE):
            return Unsupported(
                f"takes weights and activations in {_DTYPE}, not {weight.dtype} and"
                f" {weight.act_dtype or spec.dtype}"
            )
        if spec.dtype != "bfloat16":
            return Unsupported(f"dtype must be bfloat16, not {spec.dtype}")
        if spec.in_features % _CHANNELS or spec.out_features % _SIZE:
            return Unsupported(
                f"in_features must be a multiple of {_CHANNELS} and out_features of {_SIZE}, not"
                f" {spec.in_features} and {spec.out_features}"
            )
        built = torch.version.cuda
        if built is not None and tuple(map(int, built.split(".")[:2])) < _SINCE:
            wanted = ".".join(map(str, _SINCE))
            return Unsupported(f"needs cuBLAS of CUDA {wanted}, and torch was built for {built}")
        return Supported(rank=5)

    def build(self, spec: LinearSpec) -> LinearOp:
        return _Op(spec, self.target)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Weight:
    """`scale` [C / 128, N / 128] as cuBLAS reads it."""

    values: torch.Tensor
    scale: torch.Tensor


class _Op:
    def __init__(self, spec: LinearSpec, target: Target) -> None:
        self._spec = spec
        self._options = target.launch_options

    def pack(self, weights: Mapping[str, torch.Tensor]) -> PackedWeight:
        values, scale = (weights[name].contiguous() for name in ("weight", "scale"))
        return _Weight(values=values, scale=scale.t())

    def __call__(
        self, x: torch.Tensor, weight: PackedWeight, bias: torch.Tensor | None
    ) -> torch.Tensor:
        assert isinstance(weight, _Weight)
        num_tokens = x.shape[0]
        if not num_tokens:
            return x.new_empty((0, self._spec.out_features))
        num_rows = -(-num_tokens // _ROWS) * _ROWS
        rounded, scale = round_groups(x, weight.values.dtype, _SIZE, num_rows, self._options)
        y = torch._scaled_mm(
            rounded,
            weight.values.t(),
            scale_a=scale,
            scale_b=weight.scale,
            out_dtype=x.dtype,
        )[:num_tokens]
        return y if bias is None else y + bias
