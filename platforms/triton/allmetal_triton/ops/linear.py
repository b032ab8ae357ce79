"""Dense linear layers: few tokens here, many through torch and the vendor's library.

Few tokens are bound by reading N C weights, and a step has four such products a layer, so what
counts is that memory is busy from a launch's first microsecond to its last: enough programs for
every core, enough bytes on their way, and where the device can, the first of them asked for while
the launch ahead is still running.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import triton
from torch.nn import functional

from allmetal.platform.contract import Support, Supported, Unsupported
from allmetal.platform.kv import DTYPE_BYTES
from allmetal.platform.specs import DenseWeight, LinearOp, LinearSpec, PackedWeight
from allmetal_triton.jit.linear import multiply_rows, multiply_tiles
from allmetal_triton.target import Target, refuse_dtype

MOST_ROWS = 4
"""Tokens the vector units keep up with."""
MOST_FEW = 64
"""Tokens from which on a tuned matrix product is as fast."""
_SMALLEST_DOT = 16
_AHEAD = 1024


@dataclass(frozen=True, slots=True)
class TritonLinear:
    target: Target
    name: str = "triton_linear"

    def supports(self, spec: LinearSpec) -> Support:
        if not isinstance(spec.weight, DenseWeight):
            return Unsupported(f"takes dense weights, not {spec.weight.kind}")
        if spec.weight.dtype != spec.dtype:
            return Unsupported(f"takes weights in {spec.dtype}, not {spec.weight.dtype}")
        if reason := refuse_dtype(self.target, spec.dtype):
            return Unsupported(reason)
        return Supported(rank=10)

    def build(self, spec: LinearSpec) -> LinearOp:
        return _Op(spec, self.target)


@dataclass(frozen=True, slots=True)
class DensePacked:
    """The weight as it came, and a counter a tile of outputs."""

    weight: torch.Tensor
    counters: torch.Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class RowPlan:
    """`bn` outputs of `bc` channels at a time."""

    bn: int
    bc: int
    num_warps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TilePlan:
    """Tiles of `bn` outputs by `bc` channels for `bt` tokens; channels shared out in `parts`."""

    bt: int
    bn: int
    bc: int
    parts: int
    num_stages: int


def row_plan(spec: LinearSpec, num_cores: int) -> RowPlan:
    bc = min(2048, triton.next_power_of_2(spec.in_features))
    bn = max(1, 8192 // bc)
    while bn > 1 and spec.out_features < 4 * num_cores * bn:
        bn //= 2
    return RowPlan(bn=bn, bc=bc, num_warps=4)


def tile_plan(spec: LinearSpec, num_tokens: int, target: Target) -> TilePlan:
    bt = max(_SMALLEST_DOT, triton.next_power_of_2(num_tokens))
    bn, bc = 64, 128
    num_tiles = -(-spec.out_features // bn)
    steps = -(-spec.in_features // bc)
    parts = 1
    while 2 * parts * num_tiles <= 2 * target.num_cores() and 4 * parts <= steps:
        parts *= 2
    stage = (bn + bt) * bc * DTYPE_BYTES[spec.dtype]
    num_stages = max(2, min(5, target.shared_memory // 2 // stage))
    return TilePlan(bt=bt, bn=bn, bc=bc, parts=parts, num_stages=num_stages)


class _Op:
    def __init__(self, spec: LinearSpec, target: Target) -> None:
        self._spec = spec
        self._target = target
        self._options = target.launch_options
        self._rows = row_plan(spec, target.num_cores())
        self._tiles: dict[int, TilePlan] = {}

    def pack(self, weights: Mapping[str, torch.Tensor]) -> PackedWeight:
        weight = weights["weight"].contiguous()
        num_tiles = triton.cdiv(self._spec.out_features, _SMALLEST_DOT)
        counters = torch.zeros(num_tiles, dtype=torch.int32, device=weight.device)
        return DensePacked(weight, counters)

    def __call__(
        self, x: torch.Tensor, weight: PackedWeight, bias: torch.Tensor | None
    ) -> torch.Tensor:
        assert isinstance(weight, DensePacked)
        num_tokens = x.shape[0]
        if num_tokens == 0 or num_tokens > MOST_FEW or x.stride(1) != 1:
            return functional.linear(x, weight.weight, bias)
        y = torch.empty((num_tokens, self._spec.out_features), dtype=x.dtype, device=x.device)
        if num_tokens <= MOST_ROWS:
            self._multiply_rows(x, weight.weight, bias, y)
        else:
            self._multiply_tiles(x, weight, bias, y)
        return y

    def _multiply_rows(
        self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, y: torch.Tensor
    ) -> None:
        plan, n = self._rows, self._spec.out_features
        multiply_rows[(triton.cdiv(n, plan.bn),)](
            x,
            weight,
            bias,
            y,
            x.stride(0),
            T=x.shape[0],
            C=self._spec.in_features,
            N=n,
            BN=plan.bn,
            BC=plan.bc,
            num_warps=plan.num_warps,
            **self._options,
        )

    def _multiply_tiles(
        self, x: torch.Tensor, packed: DensePacked, bias: torch.Tensor | None, y: torch.Tensor
    ) -> None:
        num_tokens, n = x.shape[0], self._spec.out_features
        plan = self._tiles.get(num_tokens)
        if plan is None:
            plan = self._tiles[num_tokens] = tile_plan(self._spec, num_tokens, self._target)
        num_tiles = triton.cdiv(n, plan.bn)
        parts = None
        if plan.parts > 1:
            shape = (num_tiles * plan.parts, plan.bn, plan.bt)
            parts = torch.empty(shape, dtype=torch.float32, device=x.device)
        multiply_tiles[(num_tiles * plan.parts,)](
            x,
            packed.weight,
            bias,
            y,
            parts,
            packed.counters,
            num_tokens,
            x.stride(0),
            C=self._spec.in_features,
            N=n,
            BT=plan.bt,
            BN=plan.bn,
            BC=plan.bc,
            PARTS=plan.parts,
            AHEAD=_AHEAD,
            PRECISION="ieee" if self._spec.dtype == "float32" else "tf32",
            num_warps=4,
            num_stages=plan.num_stages,
            **self._options,
        )
