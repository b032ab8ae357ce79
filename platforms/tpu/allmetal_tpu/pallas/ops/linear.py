"""Products over 8-bit weights as an op of torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from allmetal.platform.contract import Support, Supported, Unsupported
from allmetal.platform.specs import (
    Float8Weight,
    IntWeight,
    LinearOp,
    LinearSpec,
    PackedWeight,
    WeightFormat,
)
from allmetal_tpu.pallas.bridge import Target, torch_op
from allmetal_tpu.pallas.ops.floats import refuse_dtype
from allmetal_tpu.pallas.shapes import MatmulShape, matmul_shape

if TYPE_CHECKING:
    import torch

_MANY = 2048
_LEAST_GROUP = 32
"""Scales of fewer channels would be as many bytes as the weights, nearly."""


@dataclass(frozen=True, slots=True)
class PallasLinear:
    target: Target
    name: str = "pallas_linear"

    def supports(self, spec: LinearSpec) -> Support:
        reason = self.target.refuse() or refuse_dtype(spec.dtype) or refuse_weight(spec.weight)
        if reason is None and spec.in_features % (group_of(spec.weight) or 1):
            reason = f"{spec.in_features} channels do not divide into groups"
        if reason is not None:
            return Unsupported(reason)
        shape, limit = shape_of(spec, self.target, _MANY), self.target.chip.vmem_limit
        if shape.vmem_bytes > limit:
            return Unsupported(f"takes {shape.vmem_bytes >> 20} MiB of {limit >> 20} beside a core")
        return Supported(rank=10)

    def build(self, spec: LinearSpec) -> LinearOp:
        from allmetal_tpu.pallas.jit.calls import linear

        function = linear(
            partial(shape_of, spec, self.target), bias=spec.bias, interpret=self.target.interpret
        )
        return _Linear(spec, shape_of(spec, self.target, 1), torch_op("linear", function))


@dataclass(frozen=True, slots=True)
class _Linear:
    spec: LinearSpec
    shape: MatmulShape
    product: Callable[..., Any]

    def pack(self, weights: Mapping[str, torch.Tensor]) -> PackedWeight:
        """Channels before outputs, padded to whole tiles."""
        inner, columns = self.shape.packed
        scale = weights["scale"].flatten(1).float()
        rows = inner // self.shape.group if self.shape.group else 1
        return packed(weights["weight"], inner, columns), packed(scale, rows, columns)

    def __call__(
        self, x: torch.Tensor, weight: PackedWeight, bias: torch.Tensor | None
    ) -> torch.Tensor:
        assert isinstance(weight, tuple)
        assert (bias is not None) == self.spec.bias
        values, scale = cast("tuple[torch.Tensor, torch.Tensor]", weight)
        if not x.shape[0]:
            return x.new_empty(0, self.spec.out_features)
        rest = () if bias is None else (bias,)
        y: torch.Tensor = self.product(x.contiguous(), values, scale, *rest)
        return y


def packed(x: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    """[.., N, C] -> [.., rows, columns], turned round, with zeros behind."""
    from allmetal.platform.reference.kernel import as_bytes

    turned = x.transpose(-1, -2)
    out = x.new_zeros(*x.shape[:-2], rows, columns, dtype=x.dtype)
    as_bytes(out)[..., : turned.shape[-2], : turned.shape[-1]] = as_bytes(turned)
    return out


def shape_of(spec: LinearSpec, target: Target, num_tokens: int) -> MatmulShape:
    weight = spec.weight
    assert isinstance(weight, IntWeight | Float8Weight)
    return matmul_shape(
        spec.in_features,
        spec.out_features,
        target.chip,
        num_rows=num_tokens,
        dtype=spec.dtype,
        weight_dtype="int8" if isinstance(weight, IntWeight) else weight.dtype,
        group=group_of(weight),
        act_dtype=weight.act_dtype,
    )


def group_of(weight: WeightFormat) -> int:
    return weight.group_size if isinstance(weight, IntWeight) else 0


def refuse_weight(weight: WeightFormat) -> str | None:
    match weight:
        case IntWeight(bits=8, group_size=group, act_dtype=None | "int8"):
            if group % _LEAST_GROUP:
                return f"group_size must be a multiple of {_LEAST_GROUP}, not {group}"
            return None
        case IntWeight():
            return "takes integers of 8 bits, with activations as they are or in int8"
        case Float8Weight(block=None, dtype="float8_e4m3fn" | "float8_e5m2"):
            if weight.act_dtype is None:
                return None
            # The kernel does it; the kit finds a row in some where the rounding before it differs.
            return "act_dtype must be None: compiled by XLA, rounding to fp8 makes other numbers"
        case Float8Weight():
            return "takes one scale an output, and no blocks"
        case _:
            return "takes weights of 8 bits; others XLA multiplies as well"
