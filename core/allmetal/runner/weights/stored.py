"""A tensor of a checkpoint, read whole or in slices.

Legend: N rows (outputs), C columns (inputs), T bytes of a row.
"""

from __future__ import annotations

import numpy as np
import torch

from allmetal.checkpoint.contract import TensorInfo
from allmetal.platform.specs import DenseWeight, GGUFWeight
from allmetal.quant.ggml import BLOCKS, row_bytes
from allmetal.quant.gguf import dequantize_into
from allmetal.runner.host_memory import LARGE, zeroed_pages

CHUNK_BYTES = 8 << 20
"""Stored bytes copied at once while dequantising."""


class StoredReader:
    """A WeightReader over mapped bytes; only those of a slice are read.

    Blocks may be sliced along their columns too, between blocks.  What is returned may be the
    file's own bytes: nobody may write to it, and whoever reads it often makes a copy.
    """

    def __init__(self, name: str, info: TensorInfo, data: memoryview) -> None:
        self.name = name
        self.shape = info.shape
        self.format: DenseWeight | GGUFWeight = (
            GGUFWeight(type=info.dtype) if info.is_blocks else DenseWeight(dtype=info.dtype)
        )
        self._info = info
        bytes_ = np.frombuffer(data, np.uint8)
        if info.is_blocks:
            self._stored = bytes_.reshape(-1, row_bytes(info.dtype, info.shape[-1]))
        else:
            self._stored = bytes_

    def read(
        self, dim: int | None = None, start: int = 0, length: int | None = None
    ) -> torch.Tensor:
        if self._info.is_blocks:
            return _tensor(self._rows(dim, start, length))
        return self._dense(dim, start, length)

    def dequantize(
        self,
        dtype: torch.dtype,
        dim: int | None = None,
        start: int = 0,
        length: int | None = None,
    ) -> torch.Tensor:
        if not self._info.is_blocks:
            return self._dense(dim, start, length).to(dtype)
        kind = self._info.dtype
        if len(self.shape) > 2 and dim not in (None, 0):
            raise ValueError(f"{self.name}: blocks of shape {self.shape} are sliced along dim 0")
        stored = self._rows(dim, start, length)
        block = BLOCKS[kind]
        shape = list(self.shape)
        if dim is not None:
            shape[dim] = _length(self.shape, dim, start, length)
        out = torch.empty(shape, dtype=dtype)
        values = out.view(len(stored), -1)
        step = max(1, CHUNK_BYTES // max(1, stored.shape[1]))
        assert values.shape[1] == stored.shape[1] // block.nbytes * block.elements
        for row in range(0, len(stored), step):
            part = _tensor(stored[row : row + step])
            dequantize_into(values[row : row + step].view(-1), part, kind)
        return out

    def _rows(
        self, dim: int | None, start: int, length: int | None
    ) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
        """Stored rows of blocks, a view where rows keep their order."""
        kind, shape = self._info.dtype, self.shape
        if dim is None:
            return self._ordered(0, len(self._stored))
        length = _length(shape, dim, start, length)
        if dim % len(shape) == len(shape) - 1:
            elements = BLOCKS[kind].elements
            if start % elements or length % elements:
                raise ValueError(
                    f"{self.name}: columns {start} to {start + length} cut through blocks of"
                    f" {elements} values"
                )
            columns = slice(row_bytes(kind, start), row_bytes(kind, start + length))
            return self._ordered(0, len(self._stored))[:, columns]
        per_index = len(self._stored) // shape[0]
        return self._ordered(start * per_index, length * per_index)

    def _ordered(self, start: int, length: int) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
        order = self._row_order()
        if order is None:
            return self._stored[start : start + length]
        return self._stored[order[start : start + length]]

    def _row_order(self) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]] | None:
        """Where each row lies in the file; None where it lies in its place."""
        heads = self._info.paired_heads
        if not heads:
            return None
        rows = np.arange(self.shape[0]).reshape(heads, -1, 2)
        return rows.swapaxes(1, 2).reshape(-1)

    def _dense(self, dim: int | None, start: int, length: int | None) -> torch.Tensor:
        dtype: torch.dtype = getattr(torch, self._info.dtype)
        # numpy has no bfloat16: bytes are sliced, and become a tensor of the dtype afterwards.
        stored = self._stored.reshape(*self.shape, dtype.itemsize)
        order = self._row_order()
        if order is not None:
            stored = stored[order]
        if dim is not None:
            dim %= len(self.shape)
            length = _length(self.shape, dim, start, length)
            stored = stored[(slice(None),) * dim + (slice(start, start + length),)]
        values = _tensor(stored, align=dtype.itemsize).view(dtype).squeeze(-1)
        if self._info.shift:
            values = (values.float() + self._info.shift).to(dtype)
        return values


def _length(shape: tuple[int, ...], dim: int, start: int, length: int | None) -> int:
    size = shape[dim]
    length = size - start if length is None else length
    if start < 0 or length < 0 or start + length > size:
        raise ValueError(f"there is no slice {start} to {start + length} of {size}")
    return length


def _tensor(
    stored: np.ndarray[tuple[int, ...], np.dtype[np.uint8]], *, align: int = 1
) -> torch.Tensor:
    """These bytes: as they lie in memory, if they lie together and at a multiple of `align`."""
    if stored.flags.c_contiguous and stored.ctypes.data % align == 0:
        return torch.from_numpy(stored)
    if stored.nbytes < LARGE:
        out = torch.empty(stored.shape, dtype=torch.uint8)
    else:
        out = zeroed_pages(stored.nbytes).view(stored.shape)
    np.copyto(out.numpy(), stored)
    return out
