"""Routed experts as an op of torch.  The router's choice is the reference's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from allmetal.platform.contract import Support, Supported, Unsupported
from allmetal.platform.reference import moe as reference
from allmetal.platform.specs import (
    DenseWeight,
    Float8Weight,
    IntWeight,
    MoEOp,
    MoESpec,
    PackedWeight,
    WeightFormat,
)
from allmetal_tpu.pallas.bridge import Target, torch_op
from allmetal_tpu.pallas.ops.floats import refuse_dtype
from allmetal_tpu.pallas.ops.linear import packed
from allmetal_tpu.pallas.shapes import ExpertsShape, experts_shape

if TYPE_CHECKING:
    import torch

_MANY = 2048


@dataclass(frozen=True, slots=True)
class PallasMoE:
    target: Target
    name: str = "pallas_moe"

    def supports(self, spec: MoESpec) -> Support:
        reason = self.target.refuse() or refuse_dtype(spec.dtype) or _refuse_weights(spec)
        if reason is not None:
            return Unsupported(reason)
        answer = reference.KERNEL.supports(spec)
        if isinstance(answer, Unsupported):
            return answer
        shape, limit = _shape(spec, self.target, _MANY), self.target.chip.vmem_limit
        most = max(shape.gate_up.vmem_bytes, shape.down.vmem_bytes)
        if most > limit:
            return Unsupported(f"takes {most >> 20} MiB of {limit >> 20} beside a core")
        return Supported(rank=10)

    def build(self, spec: MoESpec) -> MoEOp:
        from allmetal_tpu.pallas.jit.calls import moe

        function = moe(
            partial(_shape, spec, self.target),
            scaled=not isinstance(spec.gate_up, DenseWeight),
            interpret=self.target.interpret,
        )
        return _MoE(spec, _shape(spec, self.target, 1), torch_op("moe", function))


@dataclass(frozen=True, slots=True)
class _MoE:
    spec: MoESpec
    shape: ExpertsShape
    experts: Callable[..., Any]

    def pack(
        self, gate_up: Mapping[str, torch.Tensor], down: Mapping[str, torch.Tensor]
    ) -> PackedWeight:
        """Channels before outputs, padded to whole tiles."""
        both = ((gate_up, self.shape.gate_up), (down, self.shape.down))
        values = [packed(weights["weight"], *shape.packed) for weights, shape in both]
        scales = [
            packed(weights["scale"].flatten(2).float(), 1, shape.packed[1])
            for weights, shape in both
            if "scale" in weights
        ]
        return (*values, *scales)

    def __call__(
        self,
        x: torch.Tensor,
        logits: torch.Tensor,
        weight: PackedWeight,
        correction: torch.Tensor | None = None,
    ) -> torch.Tensor:
        from allmetal.platform.reference.routing import route

        assert isinstance(weight, tuple)
        assert (correction is not None) == self.spec.routing.correction
        if not x.shape[0]:
            return x.clone()
        ids, shares = route(logits, self.spec.routing, correction)
        tensors = cast("tuple[torch.Tensor, ...]", weight)
        y: torch.Tensor = self.experts(x.contiguous(), ids.int(), shares.float(), *tensors)
        return y


def _shape(spec: MoESpec, target: Target, num_tokens: int) -> ExpertsShape:
    return experts_shape(
        spec,
        target.chip,
        num_tokens=num_tokens,
        weight_dtypes=(_kept(spec.gate_up), _kept(spec.down)),
    )


def _kept(weight: WeightFormat) -> str:
    if isinstance(weight, DenseWeight | Float8Weight):
        return weight.dtype
    return "int8"


def _refuse_weights(spec: MoESpec) -> str | None:
    if isinstance(spec.gate_up, DenseWeight) != isinstance(spec.down, DenseWeight):
        return "takes both products dense, or both of 8 bits"
    for weight in (spec.gate_up, spec.down):
        match weight:
            case DenseWeight(dtype=spec.dtype):
                pass
            case DenseWeight(dtype=dtype):
                return f"takes experts in {spec.dtype}, not {dtype}"
            case IntWeight(bits=8, group_size=0, act_dtype=None):
                pass
            case Float8Weight(dtype="float8_e4m3fn" | "float8_e5m2", act_dtype=None, block=None):
                pass
            case _:
                return "takes dense experts, or of 8 bits with one scale an output"
    return None
