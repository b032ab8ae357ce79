"""Linear layers with integer weights of 8 or 4 bits, for any device.

Few tokens are bound by reading N C values of 8 or 4 bits; many by 2 T N C operations.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import triton
from torch.nn import functional

from allmetal.platform.contract import Support, Supported, Unsupported
from allmetal.platform.specs import IntWeight, LinearOp, LinearSpec, PackedWeight
from allmetal_triton.jit.int_linear import multiply_ints
from allmetal_triton.ops.float8 import round_tokens
from allmetal_triton.target import Target, refuse_dtype

_LEAST_GROUP = 32
"""Channels: what matrix units take of integers at once."""
_LARGEST = 32768
"""A token is held in the registers of one program while it is rounded."""


@dataclass(frozen=True, slots=True)
class TritonIntLinear:
    target: Target
    name: str = "triton_int_linear"

    def supports(self, spec: LinearSpec) -> Support:
        weight = spec.weight
        if not isinstance(weight, IntWeight):
            return Unsupported(f"takes integer weights, not {weight.kind}")
        if weight.bits not in (4, 8):
            return Unsupported(f"bits must be 4 or 8, not {weight.bits}")
        if weight.group_size % _LEAST_GROUP:
            return Unsupported(
                f"group_size must be a multiple of {_LEAST_GROUP}, not {weight.group_size}"
            )
        if weight.act_dtype not in (None, "int8"):
            return Unsupported(f"rounds activations to int8, not to {weight.act_dtype}")
        if spec.in_features > _LARGEST:
            return Unsupported(f"in_features must be at most {_LARGEST}, not {spec.in_features}")
        if reason := refuse_dtype(self.target, spec.dtype):
            return Unsupported(reason)
        return Supported(rank=10)

    def build(self, spec: LinearSpec) -> LinearOp:
        return _Op(spec, self.target)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Weight:
    """`values` [N, C] int8, or two of 4 bits a byte; `scale` [N, groups] float32."""

    values: torch.Tensor
    scale: torch.Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    bt: int
    bn: int
    num_warps: int
    num_stages: int


def tile(num_tokens: int, *, large: bool) -> Tile:
    """Few tokens: many programs, with many tiles of weights on their way."""
    if num_tokens <= 32:
        return Tile(bt=16 if num_tokens <= 16 else 32, bn=32, num_warps=4, num_stages=5)
    if num_tokens <= 256 or not large:
        return Tile(bt=64, bn=64, num_warps=4, num_stages=3)
    return Tile(bt=128, bn=128, num_warps=8, num_stages=3)


def channels_at_once(group_size: int) -> int:
    """The largest power of two up to 64 that divides a group."""
    return min(64, group_size & -group_size) if group_size else 64


class _Op:
    def __init__(self, spec: LinearSpec, target: Target) -> None:
        assert isinstance(spec.weight, IntWeight)
        self._spec = spec
        self._weight = spec.weight
        self._at_once = channels_at_once(spec.weight.group_size)
        # Sums of groups take as many registers again.
        self._large = target.dot_rows >= 64 and not spec.weight.group_size
        self._options = target.launch_options

    def pack(self, weights: Mapping[str, torch.Tensor]) -> PackedWeight:
        values, scale = weights["weight"].contiguous(), weights["scale"].float()
        if self._weight.bits == 4:
            values = pack_halves(values, self._at_once)
        return _Weight(values=values, scale=scale.reshape(values.shape[0], -1).contiguous())

    def __call__(
        self, x: torch.Tensor, weight: PackedWeight, bias: torch.Tensor | None
    ) -> torch.Tensor:
        assert isinstance(weight, _Weight)
        spec, num_tokens = self._spec, x.shape[0]
        y = torch.empty((num_tokens, spec.out_features), dtype=x.dtype, device=x.device)
        if not num_tokens:
            return y
        x_scale = None
        if x.stride(1) != 1:
            x = x.contiguous()
        if self._weight.act_dtype is not None:
            x, x_scale = round_tokens(x, torch.int8, self._options)
        cut = tile(num_tokens, large=self._large)
        programs = triton.cdiv(num_tokens, cut.bt) * triton.cdiv(spec.out_features, cut.bn)
        multiply_ints[(programs,)](
            x,
            weight.values,
            weight.scale,
            x_scale,
            bias,
            y,
            x.stride(0),
            num_tokens,
            C=spec.in_features,
            N=spec.out_features,
            BITS=self._weight.bits,
            GROUP=self._weight.group_size,
            BT=cut.bt,
            BN=cut.bn,
            BC=self._at_once,
            num_warps=cut.num_warps,
            num_stages=cut.num_stages,
            **self._options,
        )
        return y


def pack_halves(values: torch.Tensor, at_once: int) -> torch.Tensor:
    """values [N, C] int8 of 4 bits -> [N, W] int8: of each 2 `at_once` channels the first half in
    the low bits of a byte, the second in the high ones; zeros behind the last channel."""
    padded = functional.pad(values, (0, -values.shape[1] % (2 * at_once)))
    low, high = padded.unflatten(1, (-1, 2, at_once)).unbind(2)
    both: torch.Tensor = (high << 4) | (low & 15)
    return both.flatten(1).contiguous()
