"""Routed experts: every token goes through every expert, and most results count nothing.

So no shape depends on the routing, and nothing waits for the device.

Legend: T tokens, C channels, E experts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from allmetal.platform.reference import gated_activation, linear
from allmetal.platform.reference.kernel import (
    FLOAT_DTYPES,
    ReferenceKernel,
    accumulator,
    refuse_dtype,
)
from allmetal.platform.reference.routing import route
from allmetal.platform.specs import (
    GatedActivationOp,
    GatedActivationSpec,
    LinearOp,
    LinearSpec,
    MoEOp,
    MoESpec,
    PackedWeight,
    WeightFormat,
)


@dataclass(frozen=True, slots=True)
class _MoE:
    spec: MoESpec
    gate_up: LinearOp
    activation: GatedActivationOp
    down: LinearOp

    def pack(
        self, gate_up: Mapping[str, torch.Tensor], down: Mapping[str, torch.Tensor]
    ) -> PackedWeight:
        """(gate and up, down) of each expert, as they are."""
        return [
            (self.gate_up.pack(_of(gate_up, e)), self.down.pack(_of(down, e)))
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
        assert (correction is not None) == self.spec.routing.correction
        ids, weights = route(logits, self.spec.routing, correction)
        sums = accumulator(self.spec.dtype)
        y = x.new_zeros(x.shape, dtype=sums)
        for e, (gate_up, down) in enumerate(weight):
            share = torch.where(ids == e, weights, 0).sum(-1, keepdim=True)
            out = self.down(self.activation(self.gate_up(x, gate_up, None)), down, None)
            y += torch.where(share != 0, share * out, 0)
        return y.to(FLOAT_DTYPES[self.spec.dtype])


def _of(weights: Mapping[str, torch.Tensor], expert: int) -> Mapping[str, torch.Tensor]:
    return {name: tensor[expert] for name, tensor in weights.items()}


def parts(spec: MoESpec, dtype: str) -> tuple[LinearSpec, GatedActivationSpec, LinearSpec]:
    """What one expert is made of: gate and up, what joins them, and down, computed in `dtype`."""

    def product(inputs: int, outputs: int, weight: WeightFormat) -> LinearSpec:
        return LinearSpec(
            dtype=dtype, in_features=inputs, out_features=outputs, bias=False, weight=weight
        )

    inner = spec.intermediate_size
    return (
        product(spec.hidden_size, 2 * inner, spec.gate_up),
        GatedActivationSpec(dtype=dtype, dim=inner, activation=spec.activation),
        product(inner, spec.hidden_size, spec.down),
    )


def _wide_parts(spec: MoESpec) -> tuple[LinearSpec, GatedActivationSpec, LinearSpec]:
    """Between them nothing is rounded: only the result is."""
    return parts(spec, "float64" if spec.dtype == "float64" else "float32")


def _refuse(spec: MoESpec) -> str | None:
    gate_up, activation, down = _wide_parts(spec)
    return (
        refuse_dtype(spec.dtype)
        or _refuse_routing(spec)
        or linear.KERNEL.refuse(gate_up)
        or gated_activation.KERNEL.refuse(activation)
        or linear.KERNEL.refuse(down)
    )


def _refuse_routing(spec: MoESpec) -> str | None:
    routing, experts = spec.routing, spec.num_experts
    if experts % routing.num_groups:
        return f"{experts} experts do not divide into {routing.num_groups} groups"
    size = experts // routing.num_groups
    if routing.num_groups > 1 and size < 2:
        return "a group must have at least 2 experts"
    if not 1 <= routing.top_groups <= routing.num_groups:
        return f"top_groups must be 1 to {routing.num_groups}, not {routing.top_groups}"
    most = size * routing.top_groups
    if not 1 <= routing.top_k <= most:
        return f"top_k must be 1 to {most}, not {routing.top_k}"
    return None


def _make(spec: MoESpec) -> MoEOp:
    gate_up, activation, down = _wide_parts(spec)
    return _MoE(
        spec,
        linear.KERNEL.build(gate_up),
        gated_activation.KERNEL.build(activation),
        linear.KERNEL.build(down),
    )


KERNEL: ReferenceKernel[MoESpec, MoEOp] = ReferenceKernel(_refuse, _make)
