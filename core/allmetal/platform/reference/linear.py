"""Matrix products: weights are expanded to the accumulator's type, some rows at a time.

Legend: T tokens, C channels in, N outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import assert_never

import torch
from torch.nn import functional

from allmetal.platform.reference.kernel import (
    FLOAT8_DTYPES,
    FLOAT_DTYPES,
    ReferenceKernel,
    accumulator,
    refuse_dtype,
)
from allmetal.platform.specs import (
    DenseWeight,
    Float8Weight,
    GGUFWeight,
    IntWeight,
    LinearOp,
    LinearSpec,
    PackedWeight,
)
from allmetal.quant.ggml import BLOCKS

_ELEMENTS_AT_ONCE = 1 << 24
"""Bounds the expanded part of a weight; an output layer of a large vocabulary is huge."""

Expand = Callable[[Mapping[str, torch.Tensor], slice], torch.Tensor]
"""(checkpoint tensors, rows) -> those rows of W [n, C] in the accumulator's type."""


@dataclass(frozen=True, slots=True)
class _Linear:
    spec: LinearSpec
    expand: Expand

    def pack(self, weights: Mapping[str, torch.Tensor]) -> PackedWeight:
        """Keeps the tensors as they are."""
        assert weights["weight"].shape[0] == self.spec.out_features
        return dict(weights)

    def __call__(
        self, x: torch.Tensor, weight: PackedWeight, bias: torch.Tensor | None
    ) -> torch.Tensor:
        assert isinstance(weight, dict)
        assert (bias is not None) == self.spec.bias
        spec, sums = self.spec, accumulator(self.spec.dtype)
        x = x.to(sums)
        if isinstance(spec.weight, IntWeight) and spec.weight.act_dtype == "int8":
            x = _through_int8(x)
        elif isinstance(spec.weight, Float8Weight) and spec.weight.act_dtype is not None:
            x = _through_float8(x, spec.weight)
        rows = max(1, _ELEMENTS_AT_ONCE // spec.in_features)
        parts = [
            functional.linear(x, self.expand(weight, slice(n, n + rows)))
            for n in range(0, spec.out_features, rows)
        ]
        y = torch.cat(parts, dim=-1)
        return (y if bias is None else y + bias.to(sums)).to(FLOAT_DTYPES[spec.dtype])


def _through_int8(x: torch.Tensor) -> torch.Tensor:
    """Each token as integers of -127 .. 127 times one scale, given back as their product."""
    scale = x.abs().amax(-1, keepdim=True) / 127
    return torch.round(x / scale.clamp_min(torch.finfo(x.dtype).tiny)) * scale


def _through_float8(x: torch.Tensor, weight: Float8Weight) -> torch.Tensor:
    """Each token, or each group of its channels, as numbers of the activations' dtype times one
    scale, given back as their product.

    Multiplied first and divided by the largest, not by the scale, which is rounded already: values
    of few bits often lie in the middle of two numbers of `dtype`, and are to stay there.
    """
    assert weight.act_dtype is not None
    dtype, columns = FLOAT8_DTYPES[weight.act_dtype], x.shape[-1]
    size = columns if weight.block is None else weight.block[1]
    groups = functional.pad(x, (0, -columns % size)).unflatten(-1, (-1, size))
    most = torch.finfo(dtype).max
    largest = groups.abs().amax(-1, keepdim=True).clamp_min(torch.finfo(x.dtype).tiny)
    rounded = (groups * most / largest).clamp(-most, most).to(dtype).to(x.dtype)
    whole: torch.Tensor = (rounded * (largest / most)).flatten(-2)
    return whole[..., :columns]


def _expand_dense(spec: LinearSpec) -> Expand:
    sums = accumulator(spec.dtype)
    return lambda weights, rows: weights["weight"][rows].to(sums)


def _expand_int(spec: LinearSpec, weight: IntWeight) -> Expand:
    sums = accumulator(spec.dtype)
    group = weight.group_size or spec.in_features

    def expand(weights: Mapping[str, torch.Tensor], rows: slice) -> torch.Tensor:
        scale = weights["scale"][rows].to(sums).flatten(1)
        return weights["weight"][rows].to(sums) * scale.repeat_interleave(group, dim=1)

    return expand


def _expand_float8(spec: LinearSpec, weight: Float8Weight) -> Expand:
    sums, block = accumulator(spec.dtype), weight.block

    def expand(weights: Mapping[str, torch.Tensor], rows: slice) -> torch.Tensor:
        values, scale = weights["weight"][rows].to(sums), weights["scale"].to(sums)
        if block is None:
            return values * scale[rows]
        height, width = block
        of_rows = torch.arange(spec.out_features, device=scale.device)[rows] // height
        shared = scale[of_rows].repeat_interleave(width, 1)
        return values * shared[:, : spec.in_features]

    return expand


def _expand_gguf(spec: LinearSpec, weight: GGUFWeight) -> Expand:
    from allmetal.quant.gguf import dequantize

    sums = accumulator(spec.dtype)
    return lambda weights, rows: dequantize(weights["weight"][rows], weight.type, sums)


def _refuse(spec: LinearSpec) -> str | None:
    match spec.weight:
        case DenseWeight(dtype=dtype):
            return refuse_dtype(spec.dtype) or refuse_dtype(dtype)
        case IntWeight() as weight:
            return refuse_dtype(spec.dtype) or _refuse_int(spec, weight)
        case Float8Weight(dtype=dtype, act_dtype=act):
            return refuse_dtype(spec.dtype) or _refuse_float8(dtype, act)
        case GGUFWeight(type=ggml_type):
            return refuse_dtype(spec.dtype) or _refuse_gguf(ggml_type, spec.in_features)
        case other:
            assert_never(other)


def _refuse_int(spec: LinearSpec, weight: IntWeight) -> str | None:
    if not 2 <= weight.bits <= 8:
        return f"bits must be 2 to 8, not {weight.bits}"
    if weight.group_size and spec.in_features % weight.group_size:
        return f"in_features {spec.in_features} is no multiple of group_size {weight.group_size}"
    if weight.act_dtype not in (None, "int8"):
        return f"act_dtype must be None or int8, not {weight.act_dtype}"
    return None


def _refuse_float8(dtype: str, act_dtype: str | None) -> str | None:
    known = ", ".join(FLOAT8_DTYPES)
    if dtype not in FLOAT8_DTYPES:
        return f"dtype of 8-bit weights must be one of {known}, not {dtype}"
    if act_dtype is not None and act_dtype not in FLOAT8_DTYPES:
        return f"act_dtype must be None or one of {known}, not {act_dtype}"
    return None


def _refuse_gguf(ggml_type: str, in_features: int) -> str | None:
    if ggml_type not in BLOCKS:
        return f"no formula for GGML type {ggml_type}; there are {', '.join(BLOCKS)}"
    size = BLOCKS[ggml_type].elements
    return f"in_features {in_features} is no multiple of {size}" if in_features % size else None


def _make(spec: LinearSpec) -> LinearOp:
    match spec.weight:
        case DenseWeight():
            return _Linear(spec, _expand_dense(spec))
        case IntWeight() as weight:
            return _Linear(spec, _expand_int(spec, weight))
        case Float8Weight() as weight:
            return _Linear(spec, _expand_float8(spec, weight))
        case GGUFWeight() as weight:
            return _Linear(spec, _expand_gguf(spec, weight))
        case other:
            assert_never(other)


KERNEL: ReferenceKernel[LinearSpec, LinearOp] = ReferenceKernel(_refuse, _make)
