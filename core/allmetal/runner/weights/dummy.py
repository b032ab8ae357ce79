"""Random weights of the right shapes, the same in every process and for every slice.

All tensors are cut from one pool of random values, each from a place of its own, so that a large
model is filled as fast as its device can write.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator, Mapping

import torch

from allmetal.platform.specs import DenseWeight, WeightFormat
from allmetal_models.base import WeightReader

STD = 0.02
POOL = 1_000_003
"""Random values a tensor repeats: a prime, so that no two of its rows are alike."""


def dummy_readers(
    expected: Mapping[str, tuple[int, ...]],
    *,
    dtype: str,
    seed: int = 0,
    device: torch.device | None = None,
) -> Iterator[tuple[str, WeightReader]]:
    """A reader for each of a model's parameters, `expected` by name and shape.  They make their
    values on `device`, which is the host unless given; the values are the same everywhere."""
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.empty(POOL).normal_(0.0, STD, generator=generator)
    pool = torch.cat([drawn, drawn]).to(device or torch.device("cpu"))
    for name, shape in expected.items():
        yield name, DummyReader(name, shape, dtype=dtype, pool=pool)


class DummyReader:
    """A WeightReader that makes its values up: normal around 0, around 1 for norms.

    `pool` [2 * POOL] float32 holds the random values twice over."""

    def __init__(
        self, name: str, shape: tuple[int, ...], *, dtype: str, pool: torch.Tensor
    ) -> None:
        self.name = name
        self.shape = tuple(shape)
        self.format: WeightFormat = DenseWeight(dtype=dtype)
        self._dtype: torch.dtype = getattr(torch, dtype)
        begin = zlib.crc32(name.encode()) % POOL
        self._values = pool[begin : begin + POOL]

    def read(
        self, dim: int | None = None, start: int = 0, length: int | None = None
    ) -> torch.Tensor:
        size = math.prod(self.shape)
        mean = 1.0 if "norm" in self.name and self.name.endswith("weight") else 0.0
        values = (self._values[:size] + mean).to(self._dtype)
        out = torch.empty(size, dtype=self._dtype, device=values.device)
        whole = size // POOL
        if whole:
            out[: whole * POOL].view(whole, POOL).copy_(values)
        out[whole * POOL :] = values[: size - whole * POOL]
        out = out.view(self.shape)
        if dim is None:
            return out
        length = self.shape[dim] - start if length is None else length
        return out.narrow(dim, start, length).clone()

    def dequantize(
        self,
        dtype: torch.dtype,
        dim: int | None = None,
        start: int = 0,
        length: int | None = None,
    ) -> torch.Tensor:
        return self.read(dim, start, length).to(dtype)
