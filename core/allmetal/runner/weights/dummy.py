"""Random weights of the right shapes, the same in every process and for every slice."""

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
    expected: Mapping[str, tuple[int, ...]], *, dtype: str, seed: int = 0
) -> Iterator[tuple[str, WeightReader]]:
    """A reader for each of a model's parameters, `expected` by name and shape."""
    for name, shape in expected.items():
        yield name, DummyReader(name, shape, dtype=dtype, seed=seed)


class DummyReader:
    """A WeightReader that makes its values up: normal around 0, around 1 for norms."""

    def __init__(self, name: str, shape: tuple[int, ...], *, dtype: str, seed: int) -> None:
        self.name = name
        self.shape = tuple(shape)
        self.format: WeightFormat = DenseWeight(dtype=dtype)
        self._dtype: torch.dtype = getattr(torch, dtype)
        self._seed = zlib.crc32(name.encode(), seed)

    def read(
        self, dim: int | None = None, start: int = 0, length: int | None = None
    ) -> torch.Tensor:
        generator = torch.Generator().manual_seed(self._seed)
        size = math.prod(self.shape)
        mean = 1.0 if "norm" in self.name and self.name.endswith("weight") else 0.0
        pool = torch.empty(min(size, POOL)).normal_(mean, STD, generator=generator)
        pool = pool.to(self._dtype)
        out = torch.empty(size, dtype=self._dtype)
        for at in range(0, size, POOL):
            out[at : at + POOL] = pool[: size - at]
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
