"""Routed experts in five launches: choose, group, gate and up, down, sum.

Bytes moved with few tokens: those of the chosen experts' weights, 3 C N elements each.  With many
the products count: 6 T K C N operations.

Legend: T tokens, C channels, N intermediate channels, E experts, K experts a token.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

import torch
import triton

from allmetal.platform.contract import Support, Supported, Unsupported
from allmetal.platform.reference import moe as reference
from allmetal.platform.reference.routing import route
from allmetal.platform.specs import DenseWeight, MoEOp, MoESpec, PackedWeight
from allmetal_triton.jit.moe import experts_in, experts_out, sum_experts
from allmetal_triton.jit.routing import choose_experts, group_by_expert
from allmetal_triton.target import Target, refuse_dtype

_CHUNK = 1024
_BLOCK = 1024

_Launch: TypeAlias = dict[str, int]


@dataclass(frozen=True, slots=True)
class TritonMoE:
    target: Target
    name: str = "triton_moe"

    def supports(self, spec: MoESpec) -> Support:
        for weight in (spec.gate_up, spec.down):
            if not isinstance(weight, DenseWeight):
                return Unsupported(f"takes dense weights, not {weight.kind}")
            if weight.dtype != spec.dtype:
                return Unsupported(f"takes weights in {spec.dtype}, not {weight.dtype}")
        if reason := refuse_dtype(self.target, spec.dtype):
            return Unsupported(reason)
        exact = reference.KERNEL.supports(spec)
        return exact if isinstance(exact, Unsupported) else Supported(rank=10)

    def build(self, spec: MoESpec) -> MoEOp:
        return _Op(spec, self.target)


@dataclass(frozen=True, slots=True, kw_only=True)
class TilePlan:
    """BM pairs of one expert by BN outputs, BC channels at a time."""

    bm: int
    bn: int
    bc: int
    num_warps: int
    num_stages: int


def tile_plan(spec: MoESpec, num_pairs: int, target: Target) -> TilePlan:
    """Tall tiles where experts have many tokens each; long rows of weights where they have few."""
    each = num_pairs / spec.num_experts
    wide = 4 if spec.dtype == "float32" else 2
    if each <= 24:
        bm, bn, bc, num_warps = 16, 64, 256 // wide, 4
    elif each <= 96:
        bm, bn, bc, num_warps = 64, 64, 128 // wide, 4
    else:
        # Gate and up take two tiles of sums, which some devices hold in registers with the rest.
        bn = 128 if target.dot_rows == 64 else 64
        bm, bc, num_warps = 128, 128 // wide, 8
    # Gate and up are read side by side.
    stage = (bm + 2 * bn) * bc * wide
    num_stages = max(1, min(4, target.shared_memory // stage))
    return TilePlan(bm=bm, bn=bn, bc=bc, num_warps=num_warps, num_stages=num_stages)


class ExpertChoice:
    """Which experts each token goes to."""

    def __init__(self, spec: MoESpec, target: Target) -> None:
        self._spec = spec
        self._options = target.launch_options

    def __call__(
        self, logits: torch.Tensor, correction: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """ids [T, K] int32 and shares [T, K] float32."""
        routing, num_experts = self._spec.routing, self._spec.num_experts
        if routing.num_groups > 1:
            ids, shares = route(logits, routing, correction)
            return ids.int(), shares.float()
        logits = logits if logits.stride(1) == 1 else logits.contiguous()
        shape = (logits.shape[0], routing.top_k)
        ids = torch.empty(shape, dtype=torch.int32, device=logits.device)
        shares = torch.empty(shape, dtype=torch.float32, device=logits.device)
        choose_experts[(shape[0],)](
            logits,
            correction,
            ids,
            shares,
            logits.stride(0),
            E=num_experts,
            EP=triton.next_power_of_2(num_experts),
            K=routing.top_k,
            KP=triton.next_power_of_2(routing.top_k),
            SOFTMAX=routing.scoring == "softmax",
            RENORMALIZE=routing.renormalize,
            SCALE=routing.scale,
            num_warps=1,
            **self._options,
        )
        return ids, shares


class _Op:
    def __init__(self, spec: MoESpec, target: Target) -> None:
        self._spec, self._target = spec, target
        self._options = target.launch_options
        self._choose = ExpertChoice(spec, target)

    def pack(
        self, gate_up: Mapping[str, torch.Tensor], down: Mapping[str, torch.Tensor]
    ) -> PackedWeight:
        return gate_up["weight"].contiguous(), down["weight"].contiguous()

    def __call__(
        self,
        x: torch.Tensor,
        logits: torch.Tensor,
        weight: PackedWeight,
        correction: torch.Tensor | None = None,
    ) -> torch.Tensor:
        assert isinstance(weight, tuple)
        spec, num_tokens = self._spec, x.shape[0]
        y = torch.empty((num_tokens, spec.hidden_size), dtype=x.dtype, device=x.device)
        if num_tokens == 0:
            return y
        x = x if x.stride(1) == 1 else x.contiguous()
        ids, shares = self._choose(logits, correction)
        plan = tile_plan(spec, ids.numel(), self._target)
        pairs, experts = self._group(ids, plan.bm)
        parts = self._experts(x, weight, shares, pairs, experts, plan)
        num_blocks = triton.cdiv(spec.hidden_size, _BLOCK)
        sum_experts[(num_tokens, num_blocks)](
            parts, y, C=spec.hidden_size, K=spec.routing.top_k, BLOCK=_BLOCK, **self._options
        )
        return y

    def _group(self, ids: torch.Tensor, bm: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Pairs in tiles, and each tile's expert."""
        num_experts, num_pairs = self._spec.num_experts, ids.numel()
        num_tiles = num_pairs // bm + min(num_experts, num_pairs)
        pairs = torch.empty(num_tiles * bm, dtype=torch.int32, device=ids.device)
        experts = torch.empty(num_tiles, dtype=torch.int32, device=ids.device)
        group_by_expert[(num_experts,)](
            ids,
            pairs,
            experts,
            num_pairs,
            num_tiles,
            E=num_experts,
            EP=triton.next_power_of_2(num_experts + 1),
            BM=bm,
            CHUNK=_CHUNK,
            num_warps=4,
            **self._options,
        )
        return pairs, experts

    def _experts(
        self,
        x: torch.Tensor,
        weight: tuple[torch.Tensor, torch.Tensor],
        shares: torch.Tensor,
        pairs: torch.Tensor,
        experts: torch.Tensor,
        plan: TilePlan,
    ) -> torch.Tensor:
        """[T * K, C]: what each token's each expert adds to it."""
        spec, (gate_up, down) = self._spec, weight
        hidden, inner, num_tiles = spec.hidden_size, spec.intermediate_size, len(experts)
        h = torch.empty((len(pairs), inner), dtype=x.dtype, device=x.device)
        parts = torch.empty((shares.numel(), hidden), dtype=x.dtype, device=x.device)
        launch: _Launch = {"num_warps": plan.num_warps, "num_stages": plan.num_stages}
        sizes = {"C": hidden, "N": inner, "BM": plan.bm, "BN": plan.bn, "BC": plan.bc}
        experts_in[(num_tiles * triton.cdiv(inner, plan.bn),)](
            x,
            gate_up,
            pairs,
            experts,
            h,
            x.stride(0),
            K=spec.routing.top_k,
            ACTIVATION=spec.activation,
            **sizes,
            **launch,
            **self._options,
        )
        experts_out[(num_tiles * triton.cdiv(hidden, plan.bn),)](
            h,
            down,
            pairs,
            experts,
            shares,
            parts,
            **sizes,
            **launch,
            **self._options,
        )
        return parts
