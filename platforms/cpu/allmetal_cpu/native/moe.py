"""Routed experts in C++: routing, the products of the experts that are used, and the sum, in one
call.  Each expert's weights are stored as a linear layer's are.

Legend: T tokens, E experts, C channels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from allmetal.platform.contract import Unsupported
from allmetal.platform.reference import moe as reference
from allmetal.platform.specs import MoEOp, MoESpec, PackedWeight
from allmetal_cpu.native.gated_activation import NUMBERS
from allmetal_cpu.native.kernel import NativeKernel
from allmetal_cpu.native.library import Library, pointer
from allmetal_cpu.native.linear import LINEAR, NativeLinear, make

_MAX_EXPERTS = 1024


def _refuse(spec: MoESpec) -> str | None:
    if spec.num_experts > _MAX_EXPERTS:
        return f"at most {_MAX_EXPERTS} experts, not {spec.num_experts}"
    answer = reference.KERNEL.supports(spec)
    if isinstance(answer, Unsupported):
        return answer.reason
    gate_up, _, down = reference.parts(spec, spec.dtype)
    return LINEAR.refuse(gate_up) or LINEAR.refuse(down)


@dataclass(frozen=True, slots=True)
class _Experts:
    """`weights`: what the addresses are of.  Addresses [E, 2]: of a weight, of its scales or 0."""

    weights: Sequence[tuple[PackedWeight, PackedWeight]]
    gate_up: torch.Tensor
    down: torch.Tensor


class _Op:
    def __init__(self, spec: MoESpec, library: Library) -> None:
        self._spec = spec
        gate_up, _, down = reference.parts(spec, spec.dtype)
        self._gate_up, self._down = make(gate_up, library), make(down, library)
        self._run = library.function("moe", spec.dtype)
        self._shape = _shape(spec, self._gate_up, self._down)

    def pack(
        self, gate_up: Mapping[str, torch.Tensor], down: Mapping[str, torch.Tensor]
    ) -> PackedWeight:
        each = [
            (
                self._gate_up.pack({name: tensor[e] for name, tensor in gate_up.items()}),
                self._down.pack({name: tensor[e] for name, tensor in down.items()}),
            )
            for e in range(self._spec.num_experts)
        ]
        ups, downs = zip(*each, strict=True)
        return _Experts(each, _addresses(ups), _addresses(downs))

    def __call__(
        self,
        x: torch.Tensor,
        logits: torch.Tensor,
        weight: PackedWeight,
        correction: torch.Tensor | None = None,
    ) -> torch.Tensor:
        assert isinstance(weight, _Experts)
        x, logits = x.contiguous(), logits.contiguous()
        y = torch.empty_like(x)
        if correction is not None:
            correction = correction.float().contiguous()
        self._run(
            y.data_ptr(),
            x.data_ptr(),
            logits.data_ptr(),
            pointer(correction),
            weight.gate_up.data_ptr(),
            weight.down.data_ptr(),
            self._shape.data_ptr(),
            self._spec.routing.scale,
            logits.dtype == torch.float32,
            x.shape[0],
        )
        return y


def _shape(spec: MoESpec, gate_up: NativeLinear, down: NativeLinear) -> torch.Tensor:
    """ExpertShape of csrc/experts.h."""
    routing = spec.routing
    return torch.tensor(
        [
            *(spec.num_experts, spec.hidden_size, spec.intermediate_size),
            NUMBERS[spec.activation],
            routing.top_k,
            routing.scoring == "sigmoid",
            routing.renormalize,
            *(routing.num_groups, routing.top_groups),
            *(n for both in zip(gate_up.form, down.form, strict=True) for n in both),
        ],
        dtype=torch.int64,
    )


def _addresses(packed: Sequence[PackedWeight]) -> torch.Tensor:
    def of(one: PackedWeight) -> tuple[int, int]:
        if isinstance(one, tuple):
            weight, scale = one
            return weight.data_ptr(), pointer(scale) or 0
        assert isinstance(one, torch.Tensor)
        return one.data_ptr(), 0

    return torch.tensor([of(one) for one in packed], dtype=torch.int64)


MOE: NativeKernel[MoESpec, MoEOp] = NativeKernel(_refuse, _Op)
