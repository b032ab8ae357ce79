"""Routed experts: rows gathered by expert, two grouped products, and rows added up again.

Who goes where is chosen by the shared kernel.  Legend: T tokens, C channels, N intermediate
channels, E experts, K experts a token.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from allmetal.platform.contract import Support, Supported, Unsupported
from allmetal.platform.specs import DenseWeight, MoEOp, MoESpec, PackedWeight
from allmetal_triton.ops.moe import ExpertChoice, TritonMoE
from allmetal_triton.target import Target
from allmetal_xpu.vllm import package
from allmetal_xpu.vllm.elementwise import ACTIVATIONS


@dataclass(frozen=True, slots=True)
class VllmMoE:
    target: Target
    name: str = "vllm_moe"

    def supports(self, spec: MoESpec) -> Support:
        if reason := package.refuse(spec.dtype):
            return Unsupported(reason)
        for weight in (spec.gate_up, spec.down):
            if not isinstance(weight, DenseWeight):
                return Unsupported(f"takes dense weights, not {weight.kind}")
        if spec.activation not in ACTIVATIONS:
            known = ", ".join(ACTIVATIONS)
            return Unsupported(f"activation must be one of {known}, not {spec.activation}")
        shared = TritonMoE(self.target).supports(spec)
        return shared if isinstance(shared, Unsupported) else Supported(rank=5)

    def build(self, spec: MoESpec) -> MoEOp:
        return _Op(spec, self.target)


class _Op:
    def __init__(self, spec: MoESpec, target: Target) -> None:
        self._spec = spec
        self._choice = ExpertChoice(spec, target)
        self._remap = package.operator("_moe_C", "remap_hidden_states")
        self._multiply = package.operator("_xpu_C", "cutlass_grouped_gemm_interface")
        self._activate = package.operator("_C", ACTIVATIONS[spec.activation])
        self._gather = package.operator("_moe_C", "moe_gather")

    def pack(
        self, gate_up: Mapping[str, torch.Tensor], down: Mapping[str, torch.Tensor]
    ) -> PackedWeight:
        """[E, C, 2 N] and [E, N, C]: channels in before channels out."""
        return tuple(w["weight"].transpose(1, 2).contiguous() for w in (gate_up, down))

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
        if not num_tokens:
            return y
        ids, shares = self._choice(logits, correction)
        inner, num_rows = spec.intermediate_size, ids.numel()
        rows = y.new_empty((num_rows, spec.hidden_size))
        counts = torch.zeros(spec.num_experts, dtype=torch.int32, device=x.device)
        places = torch.empty_like(ids)
        self._remap(
            hidden_states=x.contiguous(),
            hidden_states_scales=None,
            remapped_hidden_states=rows,
            remapped_hidden_states_scales=None,
            expert_map=None,
            rows_per_expert=counts,
            unpermuted_row_to_permuted_row=places,
            topk_ids=ids,
            total_experts_num=spec.num_experts,
            local_experts_num=spec.num_experts,
        )
        both = self._product(rows, weight[0], counts, 2 * inner)
        h = y.new_empty((num_rows, inner))
        self._activate(h, both)
        parts = self._product(h, weight[1], counts, spec.hidden_size)
        self._gather(y, parts, shares, places, spec.num_experts)
        return y

    def _product(
        self, rows: torch.Tensor, weight: torch.Tensor, counts: torch.Tensor, outputs: int
    ) -> torch.Tensor:
        made = rows.new_empty((rows.shape[0], outputs))
        self._multiply(
            ptr_A=rows,
            ptr_A_scale=None,
            ptr_B=weight,
            ptr_B_scale=None,
            ptr_bias=None,
            ptr_D=made,
            rows_per_expert=counts,
            N=outputs,
            K=rows.shape[1],
            num_experts=self._spec.num_experts,
        )
        return made
