"""Routed experts by aiter's fused kernels; who goes where is chosen by the shared one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from allmetal.platform.contract import Support, Supported, Unsupported
from allmetal.platform.specs import DenseWeight, MoEOp, MoESpec, PackedWeight
from allmetal_rocm.aiter import package
from allmetal_triton.ops.moe import ExpertChoice, TritonMoE
from allmetal_triton.target import Target

_ALIGNED = 128
_LAYOUT = (16, 16)
"""Rows and channels of a piece of a weight, side by side as the matrix instruction reads them."""


@dataclass(frozen=True, slots=True)
class AiterMoE:
    arch: str
    target: Target
    name: str = "aiter_moe"

    def supports(self, spec: MoESpec) -> Support:
        if reason := package.refuse(self.arch, spec.dtype) or _refuse(spec):
            return Unsupported(reason)
        shared = TritonMoE(self.target).supports(spec)
        return shared if isinstance(shared, Unsupported) else Supported(rank=5)

    def build(self, spec: MoESpec) -> MoEOp:
        return _Op(spec, self.target)


def _refuse(spec: MoESpec) -> str | None:
    for weight in (spec.gate_up, spec.down):
        if not isinstance(weight, DenseWeight):
            return f"takes dense weights, not {weight.kind}"
    if spec.activation != "silu":
        return f"activation must be silu, not {spec.activation}"
    if spec.hidden_size % _ALIGNED or spec.intermediate_size % _ALIGNED:
        return (
            f"hidden_size and intermediate_size must be multiples of {_ALIGNED}, not"
            f" {spec.hidden_size} and {spec.intermediate_size}"
        )
    return None


class _Op:
    def __init__(self, spec: MoESpec, target: Target) -> None:
        self._choice = ExpertChoice(spec, target)
        self._fused = package.function("aiter.fused_moe", "fused_moe")
        self._shuffle: Callable[..., Any] = package.function("aiter.ops.shuffle", "shuffle_weight")
        self._silu = package.member("aiter", "ActivationType").Silu
        self._unquantised = package.member("aiter", "QuantType").No

    def pack(
        self, gate_up: Mapping[str, torch.Tensor], down: Mapping[str, torch.Tensor]
    ) -> PackedWeight:
        return tuple(self._shuffle(w["weight"], layout=_LAYOUT) for w in (gate_up, down))

    def __call__(
        self,
        x: torch.Tensor,
        logits: torch.Tensor,
        weight: PackedWeight,
        correction: torch.Tensor | None = None,
    ) -> torch.Tensor:
        assert isinstance(weight, tuple)
        if not x.shape[0]:
            return torch.empty_like(x)
        ids, shares = self._choice(logits, correction)
        y: torch.Tensor = self._fused(
            x.contiguous(),
            weight[0],
            weight[1],
            shares,
            ids,
            activation=self._silu,
            quant_type=self._unquantised,
        )
        return y
