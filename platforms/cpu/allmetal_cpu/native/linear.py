"""y = x W^T + b: over panels where this CPU's kernels have them; elsewhere over weights where they
lie, row-major as in the checkpoint.  Quantised ones are then decoded some rows at a time into the
nearest cache, so that only their own bytes are read from memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, assert_never

import torch

from allmetal.platform.specs import (
    DenseWeight,
    Float8Weight,
    GGUFWeight,
    IntWeight,
    LinearOp,
    LinearSpec,
    PackedWeight,
)
from allmetal.quant.ggml import NAMES
from allmetal_cpu.native import pages, panels
from allmetal_cpu.native.kernel import NativeKernel, refuse_dtype
from allmetal_cpu.native.library import Library, load, pointer

_BLOCKS = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K")
NUMBERS = {name: number for number, name in NAMES.items() if name in _BLOCKS}
"""GGML's, of the formats that the library decodes."""


def _library() -> Library:
    loaded = load()
    assert isinstance(loaded, Library)
    return loaded


def _refuse(spec: LinearSpec) -> str | None:
    match spec.weight:
        case DenseWeight(dtype=dtype):
            if dtype != spec.dtype:
                return f"weights are {dtype}, activations {spec.dtype}"
        case IntWeight() as weight:
            if weight.act_dtype is not None and not panels.num_bytes(spec, _library()):
                return (
                    f"rounds activations to {weight.act_dtype} on CPUs with AVX-512 VNNI, from "
                    f"bfloat16, with a scale a row or a multiple of {panels.GROUPS[-1]} channels"
                )
            if weight.group_size and spec.in_features % weight.group_size:
                return f"{spec.in_features} channels do not divide by {weight.group_size}"
        case GGUFWeight(type=ggml_type):
            if ggml_type not in NUMBERS:
                return f"decodes {', '.join(NUMBERS)}, not {ggml_type}"
        case Float8Weight(dtype=dtype):
            return f"CPUs have no arithmetic for {dtype}"
        case other:
            assert_never(other)
    return refuse_dtype(spec.dtype)


class NativeLinear(LinearOp, Protocol):
    @property
    def form(self) -> tuple[int, int, int]:
        """How the weight lies, of what kind it is and the activations' bits, as experts.h says."""
        ...


# Legend of what follows: M tokens, N outputs, C channels.


class _Dense:
    def __init__(self, spec: LinearSpec, library: Library) -> None:
        self.form = (0, 0, 16)
        self._run = library.function("linear", spec.dtype)
        self._shape = (spec.out_features, spec.in_features)

    def pack(self, weights: Mapping[str, torch.Tensor]) -> PackedWeight:
        weight = pages.to_large_pages(weights["weight"])
        assert weight.shape == self._shape
        return weight

    def __call__(
        self, x: torch.Tensor, weight: PackedWeight, bias: torch.Tensor | None
    ) -> torch.Tensor:
        assert isinstance(weight, torch.Tensor)
        x = x.contiguous()
        y = x.new_empty(x.shape[0], self._shape[0])
        self._run(
            y.data_ptr(), x.data_ptr(), weight.data_ptr(), pointer(bias), x.shape[0], *self._shape
        )
        return y


class _Int8:
    def __init__(self, spec: LinearSpec, library: Library) -> None:
        assert isinstance(spec.weight, IntWeight)
        self.form = (1, spec.weight.group_size, 16)
        self._run = library.function("linear_int8", spec.dtype)
        self._shape = (spec.out_features, spec.in_features)
        self._group = spec.weight.group_size

    def pack(self, weights: Mapping[str, torch.Tensor]) -> PackedWeight:
        weight = pages.to_large_pages(weights["weight"])
        assert weight.shape == self._shape
        return weight, weights["scale"].float().contiguous()

    def __call__(
        self, x: torch.Tensor, weight: PackedWeight, bias: torch.Tensor | None
    ) -> torch.Tensor:
        assert isinstance(weight, tuple)
        values, scale = weight
        x = x.contiguous()
        y = x.new_empty(x.shape[0], self._shape[0])
        self._run(
            y.data_ptr(),
            x.data_ptr(),
            values.data_ptr(),
            scale.data_ptr(),
            pointer(bias),
            x.shape[0],
            *self._shape,
            self._group,
        )
        return y


class _Blocks:
    def __init__(self, spec: LinearSpec, library: Library) -> None:
        assert isinstance(spec.weight, GGUFWeight)
        self._run = library.function("linear_blocks", spec.dtype)
        self._shape = (spec.out_features, spec.in_features)
        self._type = NUMBERS[spec.weight.type]
        self.form = (2, self._type, 16)

    def pack(self, weights: Mapping[str, torch.Tensor]) -> PackedWeight:
        weight = pages.to_large_pages(weights["weight"])
        assert weight.shape[0] == self._shape[0]
        return weight

    def __call__(
        self, x: torch.Tensor, weight: PackedWeight, bias: torch.Tensor | None
    ) -> torch.Tensor:
        assert isinstance(weight, torch.Tensor)
        x = x.contiguous()
        y = x.new_empty(x.shape[0], self._shape[0])
        self._run(
            y.data_ptr(),
            x.data_ptr(),
            weight.data_ptr(),
            pointer(bias),
            x.shape[0],
            *self._shape,
            self._type,
        )
        return y


def make(spec: LinearSpec, library: Library) -> NativeLinear:
    if panels.num_bytes(spec, library):
        return panels.Panels(spec, library)
    match spec.weight:
        case DenseWeight():
            return _Dense(spec, library)
        case IntWeight():
            return _Int8(spec, library)
        case GGUFWeight():
            return _Blocks(spec, library)
        case Float8Weight():
            raise AssertionError("refused above")
        case other:
            assert_never(other)


LINEAR: NativeKernel[LinearSpec, LinearOp] = NativeKernel(_refuse, make)
