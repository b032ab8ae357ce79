"""Linear layers in 8 bit floating point through hipBLASLt, with a scale a row and a token.

On CDNA 3 a code means half of what it means in the OCP's formats, which checkpoints are in.  Codes
stay as they are but for a zero with a sign, and scales are doubled, so that results are those of
any other device: see `allmetal_triton.target.halved`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from allmetal.platform.contract import Support, Supported, Unsupported
from allmetal.platform.specs import Float8Weight, LinearOp, LinearSpec, PackedWeight
from allmetal_rocm.arch import ARCHS
from allmetal_triton.ops.float8 import round_tokens
from allmetal_triton.target import Target, halved

_DTYPE = "float8_e4m3fn"
_ALIGNED = 16
_LARGEST = 32768
"""A token is held in the registers of one program while it is rounded."""
_SIGNED_ZERO = 0x80


@dataclass(frozen=True, slots=True)
class ScaledLinear:
    """`multiply` is torch's, but for tests."""

    arch: str
    target: Target
    multiply: Callable[..., torch.Tensor] = torch._scaled_mm
    name: str = "hipblaslt_float8"

    def supports(self, spec: LinearSpec) -> Support:
        weight, arch = spec.weight, ARCHS.get(self.arch)
        if not isinstance(weight, Float8Weight):
            return Unsupported(f"takes weights in 8-bit floating point, not {weight.kind}")
        if arch is None or not arch.float8:
            named = self.arch or "an unknown architecture"
            return Unsupported(f"{named} has no matrix instructions for 8-bit floating point")
        if (weight.dtype, weight.act_dtype) != (_DTYPE, _DTYPE):
            return Unsupported(
                f"takes weights and activations in {_DTYPE}, not {weight.dtype} and"
                f" {weight.act_dtype or spec.dtype}"
            )
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
        return _Op(spec, self.target, self.multiply)


class _Op:
    def __init__(
        self, spec: LinearSpec, target: Target, multiply: Callable[..., torch.Tensor]
    ) -> None:
        self._spec, self._options, self._multiply = spec, target.launch_options, multiply
        narrow = halved(target, _DTYPE)
        self._halved = narrow is not None
        self._dtype: torch.dtype = getattr(torch, narrow or _DTYPE)

    def pack(self, weights: Mapping[str, torch.Tensor]) -> PackedWeight:
        """(codes [N, C], scale [1, N])."""
        codes, scale = weights["weight"].contiguous(), weights["scale"].float().view(1, -1)
        if not self._halved:
            return codes, scale.contiguous()
        codes = codes.view(torch.uint8)
        codes = torch.where(codes == _SIGNED_ZERO, 0, codes)
        return codes.view(self._dtype), 2 * scale

    def __call__(
        self, x: torch.Tensor, weight: PackedWeight, bias: torch.Tensor | None
    ) -> torch.Tensor:
        assert isinstance(weight, tuple)
        if not x.shape[0]:
            return x.new_empty((0, self._spec.out_features))
        rounded, scale = round_tokens(x, self._dtype, self._options, halved=self._halved)
        y = self._multiply(
            rounded, weight[0].t(), scale_a=scale, scale_b=weight[1], out_dtype=x.dtype
        )
        return y if bias is None else y + bias
