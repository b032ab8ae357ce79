"""What the reference kernels have in common: their name, their rank, and their dtypes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch

from allmetal.platform.contract import REFERENCE_RANK, Support, Supported, Unsupported

SpecT = TypeVar("SpecT", contravariant=True)
OpT = TypeVar("OpT", covariant=True)

FLOAT_DTYPES = {
    "float64": torch.float64,
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
FLOAT8_DTYPES = {"float8_e4m3fn": torch.float8_e4m3fn, "float8_e5m2": torch.float8_e5m2}
CACHE_DTYPES = FLOAT_DTYPES | FLOAT8_DTYPES
LAYOUTS = ("nhd", "hnd", "split_nhd")


@dataclass(frozen=True, slots=True)
class ReferenceKernel(Generic[SpecT, OpT]):
    """`refuse` gives the reason a spec cannot be done, or None."""

    refuse: Callable[[SpecT], str | None]
    make: Callable[[SpecT], OpT]

    @property
    def name(self) -> str:
        return "reference"

    def supports(self, spec: SpecT) -> Support:
        reason = self.refuse(spec)
        return Supported(REFERENCE_RANK) if reason is None else Unsupported(reason)

    def build(self, spec: SpecT) -> OpT:
        return self.make(spec)


def refuse_dtype(name: str) -> str | None:
    if name in FLOAT_DTYPES:
        return None
    return f"dtype must be one of {', '.join(FLOAT_DTYPES)}, not {name}"


def refuse_cache_dtype(name: str) -> str | None:
    if name in CACHE_DTYPES:
        return None
    if name == "int8":
        return "keys and values in int8 need scales, and the spec carries none"
    return f"kv_dtype must be one of {', '.join(CACHE_DTYPES)}, not {name}"


def accumulator(dtype: str) -> torch.dtype:
    """The type sums run in."""
    return torch.float64 if dtype == "float64" else torch.float32


def as_nhd(cache: torch.Tensor, layout: str) -> torch.Tensor:
    """A cache of a public layout as [blocks, 2, block_size, K, D], the same memory."""
    match layout:
        case "nhd":
            return cache
        case "hnd":
            return cache.transpose(2, 3)
        case "split_nhd":
            return cache.transpose(0, 1)
    raise ValueError(f"{layout} is no public layout")


def as_bytes(x: torch.Tensor) -> torch.Tensor:
    """The same memory as integers, which torch can index whatever the type, and which no device
    rounds on the way: one that computes in float32 only would change NaNs that it moves."""
    integers = {1: torch.uint8, 2: torch.int16}.get(x.dtype.itemsize)
    return x if integers is None else x.view(integers)
