"""Dense linear layers: one or two tokens here, more through torch and the vendor's library.

A token is bound by reading N C weights, and a step has four such products a layer, so what counts
is that memory is busy from a launch's first microsecond to its last: enough programs for every
core, enough bytes on their way, and where the device can, the first of them asked for while the
launch ahead is still running.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import triton
from torch.nn import functional

from allmetal.platform.contract import Support, Supported, Unsupported
from allmetal.platform.specs import DenseWeight, LinearOp, LinearSpec, PackedWeight
from allmetal_triton.jit.linear import multiply_rows
from allmetal_triton.target import Target, refuse_dtype

MOST_ROWS = 2
"""Tokens the vector units keep up with; from there on a tuned matrix product is as fast."""
_MANY_OUTPUTS = 4096
_LONG = 4096


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


@dataclass(frozen=True, slots=True, kw_only=True)
class RowPlan:
    """`bn` outputs of `bc` channels at a time."""

    bn: int
    bc: int
    num_warps: int = 4


def row_plan(spec: LinearSpec) -> RowPlan:
    """Small pieces of many outputs, else whole rows; the fastest of fourteen on an H200."""
    if spec.out_features >= _MANY_OUTPUTS and spec.in_features <= _LONG:
        return RowPlan(bn=2 if spec.out_features < 6144 else 4, bc=1024)
    bc = min(_LONG, triton.next_power_of_2(spec.in_features))
    return RowPlan(bn=max(1, _LONG // bc), bc=bc)


class _Op:
    def __init__(self, spec: LinearSpec, target: Target) -> None:
        self._spec = spec
        self._options = target.launch_options
        self._rows = row_plan(spec)

    def pack(self, weights: Mapping[str, torch.Tensor]) -> PackedWeight:
        return weights["weight"].contiguous()

    def __call__(
        self, x: torch.Tensor, weight: PackedWeight, bias: torch.Tensor | None
    ) -> torch.Tensor:
        assert isinstance(weight, torch.Tensor)
        num_tokens, plan, n = x.shape[0], self._rows, self._spec.out_features
        if num_tokens == 0 or num_tokens > MOST_ROWS or x.stride(1) != 1:
            return functional.linear(x, weight, bias)
        y = torch.empty((num_tokens, n), dtype=x.dtype, device=x.device)
        multiply_rows[(triton.cdiv(n, plan.bn),)](
            x,
            weight,
            bias,
            y,
            x.stride(0),
            T=num_tokens,
            C=self._spec.in_features,
            N=n,
            BN=plan.bn,
            BC=plan.bc,
            num_warps=plan.num_warps,
            **self._options,
        )
        return y
