"""Dense linear layers on Hopper: few tokens here, one often by Triton's rows, many by cuBLAS.

Few tokens are bound by reading N C weights; many by 2 T N C operations.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

import torch
import triton
from torch.nn import functional
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from allmetal.platform.contract import Support, Supported, Unsupported
from allmetal.platform.specs import LinearOp, LinearSpec, PackedWeight
from allmetal_cuda.jit.hopper_linear import hopper_linear
from allmetal_triton.ops.linear import TritonLinear
from allmetal_triton.target import Target

MOST_TOKENS = 128
MOST_TOKENS_OF_SMALL = 256
_SMALL = 1 << 23
"""Weights: up to here it matters most that launches run into each other, and cuBLAS's do not."""
_DTYPES = ("bfloat16", "float16")
_ALIGNED = 8
"""The copy engine wants rows at multiples of 16 bytes."""
_WARPS = 4
_MOST_SPLITS = 4


@dataclass(frozen=True, slots=True)
class HopperLinear:
    target: Target
    name: str = "hopper_linear"

    def supports(self, spec: LinearSpec) -> Support:
        if spec.dtype not in _DTYPES:
            return Unsupported(f"dtype must be one of {', '.join(_DTYPES)}, not {spec.dtype}")
        if spec.in_features % _ALIGNED:
            return Unsupported(
                f"in_features must be a multiple of {_ALIGNED}, not {spec.in_features}"
            )
        rest = TritonLinear(self.target).supports(spec)
        return Supported(rank=5) if isinstance(rest, Supported) else rest

    def build(self, spec: LinearSpec) -> LinearOp:
        return _Op(spec, self.target)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Tiles of `bn` outputs and `bt` tokens by `bk` channels of two bytes, which `splits` programs
    share; `stages` of them in a program's memory."""

    bn: int
    bk: int
    bt: int
    splits: int
    stages: int

    @property
    def registers(self) -> int:
        """A thread's share, so small that the next launch's programs find room beside these."""
        sums = self.bn * self.bt // (32 * _WARPS)
        return 72 if sums <= 32 else 112 if sums <= 64 else 168


@cache
def plan(in_features: int, out_features: int, num_tokens: int, num_cores: int) -> Plan | None:
    """The fastest of some 25 for each of eleven shapes at 16, 32, 64 and 128 tokens on an H200, or
    None where that was cuBLAS."""
    if num_tokens > MOST_TOKENS and in_features * out_features > _SMALL:
        return None
    bt = min(128, max(16, triton.next_power_of_2(num_tokens)))
    tiles = triton.cdiv(out_features, 64)
    if tiles > num_cores:
        if bt > 64:
            return None
        bn, bk = (64, 128) if bt <= 32 else (128, 64)
        splits, stages = 1, {16: 5, 32: 4, 64: 8}[bt]
    else:
        # Too few outputs to keep all cores busy: share tokens out, then channels.
        least = 16 if bt <= 32 else 32
        while bt > least and 4 * tiles * triton.cdiv(num_tokens, bt) <= num_cores:
            bt //= 2
        tiles *= triton.cdiv(num_tokens, bt)
        bn, bk = 64, 128 if bt <= 64 else 64
        splits = max(1, min(_MOST_SPLITS, num_cores // tiles))
        stages = {16: 10, 32: 8, 64: 6, 128: 9}[bt]
        if tiles > num_cores:
            bn, stages = 128, 6
    steps = triton.cdiv(in_features, bk)
    splits = max(1, min(splits, steps // 4))
    stages = min(stages, steps // splits)
    # Results pass through the ring.
    return (
        Plan(bn=bn, bk=bk, bt=bt, splits=splits, stages=stages) if stages * bk >= 2 * bt else None
    )


def by_rows(spec: LinearSpec) -> bool:
    """Whether the vector units are faster for one token: not with long rows, nor with many short
    ones.  Measured on an H200, 14336 -> 4096: 33.2 us, and 30.8 by tiles; 1024 -> 151,936: 79.9
    and 73.9; 4096 -> 28672: 53.6 and 56.4."""
    return spec.in_features <= 4096 and (spec.in_features >= 2048 or spec.out_features <= 8192)


@dataclass(frozen=True, slots=True, kw_only=True)
class Copied:
    """A weight [N, C] that the copy engine reads.  `counters`: how many programs have left their
    part of a tile of outputs."""

    tensor: torch.Tensor
    counters: torch.Tensor

    @classmethod
    def of(cls, weight: torch.Tensor, num_cores: int) -> Copied:
        weight = weight.contiguous()
        counters = torch.zeros(num_cores, dtype=torch.int32, device=weight.device)
        return cls(tensor=weight, counters=counters)


class _Op:
    def __init__(self, spec: LinearSpec, target: Target) -> None:
        self._spec = spec
        self._options = target.launch_options
        self._rows = TritonLinear(target).build(spec) if by_rows(spec) else None
        self._num_cores = target.num_cores()

    def pack(self, weights: Mapping[str, torch.Tensor]) -> PackedWeight:
        return Copied.of(weights["weight"], self._num_cores)

    def __call__(
        self, x: torch.Tensor, weight: PackedWeight, bias: torch.Tensor | None
    ) -> torch.Tensor:
        assert isinstance(weight, Copied)
        spec, num_tokens = self._spec, x.shape[0]
        if num_tokens == 1 and self._rows is not None:
            return self._rows(x, weight.tensor, bias)
        how = None
        if (
            0 < num_tokens <= MOST_TOKENS_OF_SMALL
            and _can_be_copied(x)
            and _can_be_copied(weight.tensor)
        ):
            how = plan(spec.in_features, spec.out_features, num_tokens, self._num_cores)
        if how is None:
            return functional.linear(x, weight.tensor, bias)
        y = torch.empty((num_tokens, spec.out_features), dtype=x.dtype, device=x.device)
        multiply(x, weight, bias, y, how, self._options)
        return y


def _can_be_copied(x: torch.Tensor) -> bool:
    return x.stride(1) == 1 and x.stride(0) % _ALIGNED == 0 and x.data_ptr() % 16 == 0


def multiply(
    x: torch.Tensor,
    weight: Copied,
    bias: torch.Tensor | None,
    y: torch.Tensor,
    how: Plan,
    options: Mapping[str, bool],
    scales: tuple[torch.Tensor, torch.Tensor] | tuple[None, None] = (None, None),
) -> None:
    """y [T, N] = x [T, C] times the weight.  `scales`: of the weight's rows and of x's."""
    num_tokens, (n, c) = x.shape[0], weight.tensor.shape
    num_tiles = triton.cdiv(n, how.bn) * triton.cdiv(num_tokens, how.bt)
    parts = (num_tiles if how.splits > 1 else 0, how.splits, how.bn, how.bt)
    bk = how.bk * 2 // x.itemsize
    layout = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=8 * x.itemsize, rank=2)
    hopper_linear[(num_tiles * how.splits,)](
        TensorDescriptor.from_tensor(weight.tensor, [how.bn, bk], layout),
        TensorDescriptor.from_tensor(x, [how.bt, bk], layout),
        bias,
        *scales,
        y,
        torch.empty(parts, dtype=torch.float32, device=x.device),
        weight.counters,
        num_tokens,
        n,
        triton.cdiv(c, bk),
        SPLITS=how.splits,
        STAGES=how.stages,
        num_warps=_WARPS,
        maxnreg=how.registers,
        **options,
    )
