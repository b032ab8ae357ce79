"""Routed experts, their weights stacked: few tokens fetch the experts they go to, many go through
all of them.

Which of the two is settled by the number of tokens, so no shape depends on the routing.

Legend: T tokens, C channels, E experts, A experts of a token, I inner size.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from allmetal.platform.reference import gated_activation
from allmetal.platform.reference import moe as reference
from allmetal.platform.reference.kernel import FLOAT_DTYPES
from allmetal.platform.reference.routing import route
from allmetal.platform.specs import (
    DenseWeight,
    GatedActivationOp,
    GatedActivationSpec,
    MoEOp,
    MoESpec,
    PackedWeight,
)
from allmetal_tpu.ops.kernel import XlaKernel, refuse_dtype

INNER_AT_ONCE = 1 << 25
"""Values between the two products that are held at once."""


@dataclass(frozen=True, slots=True)
class _MoE:
    spec: MoESpec
    activation: GatedActivationOp

    def pack(
        self, gate_up: Mapping[str, torch.Tensor], down: Mapping[str, torch.Tensor]
    ) -> PackedWeight:
        return gate_up["weight"], down["weight"]

    def __call__(
        self,
        x: torch.Tensor,
        logits: torch.Tensor,
        weight: PackedWeight,
        correction: torch.Tensor | None = None,
    ) -> torch.Tensor:
        assert isinstance(weight, tuple)
        assert (correction is not None) == self.spec.routing.correction
        spec = self.spec
        gate_up, down = weight  # [E, 2 I, C], [E, C, I]
        ids, shares = route(logits, spec.routing, correction)
        if x.shape[0] * spec.routing.top_k <= spec.num_experts:
            y = self._few(x, ids, shares, gate_up, down)
        else:
            y = self._many(x, ids, shares, gate_up, down)
        return y.to(FLOAT_DTYPES[spec.dtype])

    def _few(
        self,
        x: torch.Tensor,
        ids: torch.Tensor,
        shares: torch.Tensor,
        gate_up: torch.Tensor,
        down: torch.Tensor,
    ) -> torch.Tensor:
        """Each token with copies of its own experts."""
        inner = torch.einsum("tc,taic->tai", x.float(), gate_up[ids].float())
        inner = self.activation(inner.flatten(0, 1)).unflatten(0, ids.shape)
        return torch.einsum("tai,taci,ta->tc", inner, down[ids].float(), shares.float())

    def _many(
        self,
        x: torch.Tensor,
        ids: torch.Tensor,
        shares: torch.Tensor,
        gate_up: torch.Tensor,
        down: torch.Tensor,
    ) -> torch.Tensor:
        """Some experts at a time; what a token does not go to counts nothing."""
        spec, wide = self.spec, x.float()
        some = max(1, INNER_AT_ONCE // (x.shape[0] * 2 * spec.intermediate_size))
        y = torch.zeros_like(wide)
        for first in range(0, spec.num_experts, some):
            mine = slice(first, first + some)
            inner = torch.einsum("tc,eic->eti", wide, gate_up[mine].float())
            inner = self.activation(inner.flatten(0, 1)).unflatten(0, inner.shape[:2])
            experts = torch.arange(first, first + inner.shape[0], device=x.device)
            share = torch.where(ids[:, :, None] == experts, shares[:, :, None].float(), 0.0).sum(1)
            out = torch.einsum("eti,eci->etc", inner, down[mine].float())
            share = share.t()[..., None]
            # An expert's product may be no finite number for a token that does not go to it.
            y = y + torch.where(share != 0, share * out, 0.0).sum(0)
        return y


def _refuse(spec: MoESpec) -> str | None:
    if reason := refuse_dtype(spec.dtype):
        return reason
    for weight in (spec.gate_up, spec.down):
        if not isinstance(weight, DenseWeight):
            return f"takes dense experts, not {weight.kind}; the reference expands those"
        if weight.dtype != spec.dtype:
            return f"takes experts in {spec.dtype}, not {weight.dtype}"
    return reference.KERNEL.refuse(spec)


def _make(spec: MoESpec) -> MoEOp:
    activation = GatedActivationSpec(
        dtype="float32", dim=spec.intermediate_size, activation=spec.activation
    )
    return _MoE(spec, gated_activation.KERNEL.build(activation))


KERNEL: XlaKernel[MoESpec, MoEOp] = XlaKernel("xla_moe", _refuse, _make)
