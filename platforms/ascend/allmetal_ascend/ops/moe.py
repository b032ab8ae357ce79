"""Routed experts: `npu_moe_gating_top_k`, `npu_moe_init_routing_v2`, `npu_grouped_matmul`,
`npu_moe_token_unpermute`.

No shape depends on the routing and nothing waits for the device: how many rows each expert got
stays there.

Legend: T tokens, k experts of a token, E experts, C channels, I channels inside an expert.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from allmetal.platform.contract import Support, Supported, Unsupported
from allmetal.platform.reference.routing import route
from allmetal.platform.specs import (
    DenseWeight,
    IntWeight,
    MoEOp,
    MoESpec,
    PackedWeight,
    Routing,
    WeightFormat,
)
from allmetal_ascend.chips import Chip
from allmetal_ascend.ops.dtypes import FLOAT, HALF, refuse_dtype
from allmetal_ascend.ops.gated_activation import gate, refuse_activation
from allmetal_ascend.ops.int8 import quantise

_MOST_EXPERTS, _WIDEST = 1024, 65_536
_INT8 = IntWeight(bits=8, act_dtype="int8")


@dataclass(frozen=True, slots=True)
class NpuMoE:
    chip: Chip
    name: str = "npu_moe"

    def supports(self, spec: MoESpec) -> Support:
        if not self.chip.grouped:
            return Unsupported(f"{self.chip.arch} multiplies no groups of rows with activations")
        refused = (
            _refuse_weights(spec.gate_up, spec.down)
            or refuse_dtype(self.chip, spec.dtype, HALF if spec.gate_up == _INT8 else FLOAT)
            or refuse_activation(spec.activation)
        )
        if refused is None and not 1 < spec.num_experts <= _MOST_EXPERTS:
            refused = f"there must be 2 to {_MOST_EXPERTS} experts, not {spec.num_experts}"
        if refused is None and max(spec.hidden_size, 2 * spec.intermediate_size) >= _WIDEST:
            refused = f"no side of a weight may reach {_WIDEST}"
        return Supported() if refused is None else Unsupported(refused)

    def build(self, spec: MoESpec) -> MoEOp:
        return _MoE(spec)


def _refuse_weights(gate_up: WeightFormat, down: WeightFormat) -> str | None:
    if isinstance(gate_up, DenseWeight) and isinstance(down, DenseWeight):
        return None
    if gate_up == down == _INT8:
        return None
    return "weights must be dense, or both int8 with one scale a row and activations in int8"


@dataclass(frozen=True, slots=True)
class Experts:
    """`weight` [E, inputs, outputs]; `scale` [E, outputs] where it is int8."""

    weight: torch.Tensor
    scale: torch.Tensor | None


@dataclass(frozen=True, slots=True)
class _MoE:
    spec: MoESpec

    @property
    def dtype(self) -> torch.dtype:
        dtype: torch.dtype = getattr(torch, self.spec.dtype)
        return dtype

    def pack(
        self, gate_up: Mapping[str, torch.Tensor], down: Mapping[str, torch.Tensor]
    ) -> PackedWeight:
        return self._pack(gate_up), self._pack(down)

    def _pack(self, tensors: Mapping[str, torch.Tensor]) -> Experts:
        weight = tensors["weight"].transpose(1, 2)
        if "scale" not in tensors:
            return Experts(weight.to(self.dtype).contiguous(), None)
        # The operator wants scales in the type of what it makes, float16 aside.
        kind = torch.bfloat16 if self.dtype == torch.bfloat16 else torch.float32
        return Experts(weight.contiguous(), tensors["scale"].flatten(1).to(kind))

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
        gate_up, down = weight
        ids, shares = choose(logits, self.spec.routing, correction)
        rows, places, counts, scale = self._sort(x.contiguous(), ids, gate_up.scale is not None)
        inner = gate(self._multiply(rows, scale, counts, gate_up), self.spec.activation)
        if down.scale is not None:
            inner, scale = quantise(inner)
        return self._collect(self._multiply(inner, scale, counts, down), places, shares)

    def _sort(
        self, x: torch.Tensor, ids: torch.Tensor, narrow: bool
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """Rows by expert [T * k, C], where each token's went [T * k] int32, how many each expert
        got [E] int64, and the rows' scales if they are `narrow`ed to int8."""
        experts = self.spec.num_experts
        rows, places, counts, scale = torch.ops.npu.npu_moe_init_routing_v2(
            x,
            ids,
            active_num=ids.numel(),
            expert_num=experts,
            expert_tokens_num_type=1,
            expert_tokens_num_flag=True,
            quant_mode=1 if narrow else -1,
            active_expert_range=[0, experts],
            row_idx_type=0,
        )
        return rows, places, counts, scale if narrow else None

    def _multiply(
        self,
        rows: torch.Tensor,
        scale: torch.Tensor | None,
        counts: torch.Tensor,
        experts: Experts,
    ) -> torch.Tensor:
        options: dict[str, Any] = {}
        if experts.scale is not None:
            assert scale is not None
            options = {
                "scale": [experts.scale],
                "per_token_scale": [scale],
                "output_dtype": self.dtype,
            }
        y: torch.Tensor = torch.ops.npu.npu_grouped_matmul(
            [rows],
            [experts.weight],
            group_list=counts,
            group_list_type=1,
            group_type=0,
            split_item=2,
            **options,
        )[0]
        return y

    def _collect(self, y: torch.Tensor, places: torch.Tensor, shares: torch.Tensor) -> torch.Tensor:
        """Each token's rows, weighted and summed."""
        if self.dtype == torch.bfloat16:  # the only type that the operator is documented for
            out: torch.Tensor = torch.ops.npu.npu_moe_token_unpermute(
                y, places, probs=shares.to(self.dtype)
            )
            return out
        mine = y.index_select(0, places).view(*shares.shape, -1)
        return (mine.float() * shares.float()[..., None]).sum(1).to(self.dtype)


def choose(
    logits: torch.Tensor, routing: Routing, correction: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """logits [T, E] -> expert ids [T, k] int32 and their shares [T, k] float32."""
    if not _gates(logits.shape[1], routing):
        ids, shares = route(logits, routing, correction)
        return ids.to(torch.int32), shares
    softmax = routing.scoring == "softmax"
    shares, ids, _ = torch.ops.npu.npu_moe_gating_top_k(
        logits.float(),
        routing.top_k,
        bias=None if correction is None else correction.float(),
        k_group=routing.top_groups,
        group_count=routing.num_groups,
        group_select_mode=1,
        norm_type=0 if softmax else 1,
        routed_scaling_factor=1.0 if softmax else routing.scale,
    )
    if softmax:  # the operator gives shares of all experts then
        if routing.renormalize:
            shares = shares / shares.sum(-1, keepdim=True)
        shares = shares * routing.scale
    return ids, shares


def _gates(num_experts: int, routing: Routing) -> bool:
    """Whether one operator does it: with sigmoid it always makes the shares sum up."""
    size = num_experts // routing.num_groups
    aligned = -(-size // 32) * 32 * routing.num_groups
    fits = size > 2 and aligned <= 2048 and num_experts <= 2048
    return fits and (routing.scoring == "softmax" or routing.renormalize)
