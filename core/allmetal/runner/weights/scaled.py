"""Matrices that are stored as 8-bit values and scales.

Legend: N rows (outputs), C columns (inputs).
"""

from __future__ import annotations

import torch

from allmetal.checkpoint.contract import TensorInfo
from allmetal.platform.specs import Float8Weight, IntWeight
from allmetal.runner.weights.stored import StoredReader


def scaled_format(info: TensorInfo) -> Float8Weight | IntWeight:
    """`info.scales` are there."""
    assert info.scales is not None
    act_dtype = info.dtype if info.scales.rounds_activations else None
    if info.dtype == "int8":
        return IntWeight(act_dtype=act_dtype)
    return Float8Weight(dtype=info.dtype, act_dtype=act_dtype, block=info.scales.block)


class ScaledReader:
    """A WeightReader and a ScaleReader."""

    def __init__(self, values: StoredReader, info: TensorInfo, scales: StoredReader) -> None:
        self.name = values.name
        self.shape = info.shape
        self.format = scaled_format(info)
        self._values = values
        self._block = info.scales.block if info.scales is not None else None
        self._scales = scales

    def read(
        self, dim: int | None = None, start: int = 0, length: int | None = None
    ) -> torch.Tensor:
        return self._values.read(dim, start, length)

    def scale(
        self, dim: int | None = None, start: int = 0, length: int | None = None
    ) -> torch.Tensor:
        """Those of a slice, float32: [n, 1], or a block's where it begins and ends with blocks."""
        scales = self._scales.read().float()
        if self._block is None:
            scales = scales.reshape(-1, 1).expand(self.shape[0], 1)
        if dim is None or (self._block is None and dim % 2):
            return scales.contiguous()
        dim %= 2
        length = self.shape[dim] - start if length is None else length
        size = 1 if self._block is None else self._block[dim]
        end = start + length
        if start % size or (end % size and end != self.shape[dim]):
            raise ValueError(f"{self.name}: {start} to {end} cuts through blocks of {size}")
        first = start // size
        return scales.narrow(dim, first, -(-end // size) - first).contiguous()

    def dequantize(
        self,
        dtype: torch.dtype,
        dim: int | None = None,
        start: int = 0,
        length: int | None = None,
    ) -> torch.Tensor:
        scales = self._scales.read().float()
        if self._block is None:
            scales = scales.reshape(-1, 1).expand(self.shape[0], 1)
        else:
            for axis, size in enumerate(self._block):
                scales = scales.repeat_interleave(size, axis).narrow(axis, 0, self.shape[axis])
        if dim is not None:
            dim %= 2
            length = self.shape[dim] - start if length is None else length
            if scales.shape[dim] > 1 or self.shape[dim] == 1:
                scales = scales.narrow(dim, start, length)
        values = self._values.read(dim, start, length)
        return (values.float() * scales).to(dtype)
