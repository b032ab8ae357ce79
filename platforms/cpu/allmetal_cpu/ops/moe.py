"""Routed experts: tokens are gathered by expert, and unused experts are not read.

Each expert's products are those of a linear layer, by the platform's own kernels, so that every
stored format they take is taken here.

Legend: T tokens, k experts a token, C channels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from allmetal.platform.contract import AnyKernel, Support, Supported, Unsupported
from allmetal.platform.reference import moe as reference
from allmetal.platform.reference.routing import route
from allmetal.platform.specs import (
    GatedActivationOp,
    GatedActivationSpec,
    LinearOp,
    LinearSpec,
    MoEOp,
    MoESpec,
    PackedWeight,
)
from allmetal_cpu.recording import by_hand


@dataclass(frozen=True, slots=True)
class GroupedExperts:
    """`linear` and `activation`: the kernels it is made of, the best one first."""

    linear: Sequence[AnyKernel]
    activation: Sequence[AnyKernel]
    name: str = "grouped"

    def supports(self, spec: MoESpec) -> Support:
        answer = reference.KERNEL.supports(spec)
        if isinstance(answer, Unsupported):
            return answer
        for kernels, part in self._parts(spec):
            first = _first(kernels, part)
            if isinstance(first, Unsupported):
                return first
        return Supported(rank=20)

    def build(self, spec: MoESpec) -> MoEOp:
        gate_up, activation, down = (
            kernel.build(part)
            for kernels, part in self._parts(spec)
            if not isinstance(kernel := _first(kernels, part), Unsupported)
        )
        return _Grouped(spec, gate_up, activation, down)

    def _parts(
        self, spec: MoESpec
    ) -> tuple[tuple[Sequence[AnyKernel], LinearSpec | GatedActivationSpec], ...]:
        gate_up, activation, down = reference.parts(spec, spec.dtype)
        return (self.linear, gate_up), (self.activation, activation), (self.linear, down)


def _first(
    kernels: Sequence[AnyKernel], spec: LinearSpec | GatedActivationSpec
) -> AnyKernel | Unsupported:
    reasons = []
    for kernel in kernels:
        answer = kernel.supports(spec)
        if not isinstance(answer, Unsupported):
            return kernel
        reasons.append(f"{kernel.name}: {answer.reason}")
    return Unsupported("; ".join(reasons))


@dataclass(frozen=True, slots=True)
class _Grouped:
    spec: MoESpec
    gate_up: LinearOp
    activation: GatedActivationOp
    down: LinearOp

    def pack(
        self, gate_up: Mapping[str, torch.Tensor], down: Mapping[str, torch.Tensor]
    ) -> PackedWeight:
        """(gate and up, down) of each expert."""
        return [
            (
                self.gate_up.pack({name: tensor[e] for name, tensor in gate_up.items()}),
                self.down.pack({name: tensor[e] for name, tensor in down.items()}),
            )
            for e in range(self.spec.num_experts)
        ]

    def __call__(
        self,
        x: torch.Tensor,
        logits: torch.Tensor,
        weight: PackedWeight,
        correction: torch.Tensor | None = None,
    ) -> torch.Tensor:
        assert isinstance(weight, list)
        return by_hand(lambda: self._compute(x, logits, weight, correction), "experts")

    def _compute(
        self,
        x: torch.Tensor,
        logits: torch.Tensor,
        weight: list[tuple[PackedWeight, PackedWeight]],
        correction: torch.Tensor | None,
    ) -> torch.Tensor:
        ids, shares = route(logits, self.spec.routing, correction)
        y = torch.zeros(x.shape, dtype=torch.float32)
        if x.shape[0] == 1:
            for expert, share in zip(ids[0].tolist(), shares[0].tolist(), strict=True):
                y += self._expert(x, weight[expert]).float().mul_(share)
            return y.to(x.dtype)
        # Stable, so that a token's experts are summed in the order of their numbers.
        by_expert, order = ids.flatten().sort(stable=True)
        counts = torch.bincount(by_expert, minlength=self.spec.num_experts).tolist()
        tokens = (order // self.spec.routing.top_k).split(counts)
        weights = shares.flatten()[order].unsqueeze(-1).split(counts)
        for expert, rows in enumerate(tokens):
            if len(rows):
                out = self._expert(x[rows], weight[expert])
                y.index_add_(0, rows, out.float().mul_(weights[expert]))
        return y.to(x.dtype)

    def _expert(self, x: torch.Tensor, weight: tuple[PackedWeight, PackedWeight]) -> torch.Tensor:
        gate_up, down = weight
        return self.down(self.activation(self.gate_up(x, gate_up, None)), down, None)
