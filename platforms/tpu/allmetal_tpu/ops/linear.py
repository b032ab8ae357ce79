"""Matrix products: what a weight is stored as is widened where it is read, inside the product.

Legend: T tokens, C channels in, N outputs, S groups of channels with a scale of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import cast

import torch
from torch.nn import functional

from allmetal.platform.reference import linear as reference
from allmetal.platform.reference.kernel import FLOAT_DTYPES
from allmetal.platform.specs import (
    DenseWeight,
    Float8Weight,
    GGUFWeight,
    IntWeight,
    LinearOp,
    LinearSpec,
    PackedWeight,
)
from allmetal_tpu.ops.kernel import XlaKernel, refuse_dtype

Round = Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor | None]]
"""x [T, C] in float32 -> what is multiplied, and what the product of a token is multiplied with."""


@dataclass(frozen=True, slots=True)
class _Dense:
    spec: LinearSpec

    def pack(self, weights: Mapping[str, torch.Tensor]) -> PackedWeight:
        return weights["weight"]

    def __call__(
        self, x: torch.Tensor, weight: PackedWeight, bias: torch.Tensor | None
    ) -> torch.Tensor:
        assert isinstance(weight, torch.Tensor)
        return functional.linear(x, weight, bias)


@dataclass(frozen=True, slots=True)
class _Scaled:
    """Weights of 8 bits times scales.  Products run in float32, which holds every value of 8 bits
    and, up to some thousand channels, every sum of theirs exactly."""

    spec: LinearSpec
    round: Round

    def pack(self, weights: Mapping[str, torch.Tensor]) -> PackedWeight:
        return weights["weight"], weights["scale"].float()

    def __call__(
        self, x: torch.Tensor, weight: PackedWeight, bias: torch.Tensor | None
    ) -> torch.Tensor:
        assert isinstance(weight, tuple)
        values, scale = cast("tuple[torch.Tensor, torch.Tensor]", weight)  # [N, C] and [N, S]
        x, back = self.round(x.float())
        groups = scale.shape[1]
        if groups == 1:
            y = functional.linear(x, values.float()) * scale[:, 0]
        else:
            each = (groups, x.shape[1] // groups)
            wide = values.float().unflatten(1, each)
            parts = torch.einsum("tsc,nsc->tns", x.unflatten(1, each), wide)
            y = (parts * scale).sum(-1)
        y = y if back is None else y * back
        return (y if bias is None else y + bias.float()).to(FLOAT_DTYPES[self.spec.dtype])


def _as_it_is(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
    return x, None


def _to_int8(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
    scale = x.abs().amax(-1, keepdim=True) / 127
    return torch.round(x / scale.clamp_min(torch.finfo(x.dtype).tiny)), scale


def _refuse(spec: LinearSpec) -> str | None:
    if reason := refuse_dtype(spec.dtype):
        return reason
    match spec.weight:
        case DenseWeight(dtype=dtype):
            return None if dtype == spec.dtype else f"takes weights in {spec.dtype}, not {dtype}"
        case GGUFWeight():
            return "takes dense, int8 and float8 weights; blocks of GGML the reference expands"
        case Float8Weight(block=block) if block is not None:
            return "takes a scale a row of weights in 8-bit floating point, not one a block"
        case Float8Weight(act_dtype=str()):
            return "XLA may round activations to 8 bits by way of 16, which makes other numbers"
        case IntWeight(bits=bits) if bits != 8:
            return f"takes integers of 8 bits, not {bits}"
        case _:
            return reference.KERNEL.refuse(spec)


def _make(spec: LinearSpec) -> LinearOp:
    match spec.weight:
        case IntWeight(act_dtype="int8"):
            return _Scaled(spec, _to_int8)
        case IntWeight() | Float8Weight():
            return _Scaled(spec, _as_it_is)
        case _:
            return _Dense(spec)


KERNEL: XlaKernel[LinearSpec, LinearOp] = XlaKernel("xla_linear", _refuse, _make)
