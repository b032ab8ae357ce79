"""Memory that recorded steps share for what they make.

A region is taken again when the last tensor that lies in it is gone, in the order in which the
step was computed: what is computed again finds everything where it was.
"""

from __future__ import annotations

import ctypes
import weakref
from bisect import insort
from math import prod

import torch

_LINE = 64
_BLOCK = 4 << 20


class Arena:
    def __init__(self) -> None:
        self._blocks: list[torch.Tensor] = []
        self._free: list[tuple[int, int]] = []  # (address, bytes), rising and apart
        self._returned: list[tuple[int, int]] = []  # by whatever thread lets a tensor go

    @property
    def num_bytes(self) -> int:
        """Of all memory held, used or not."""
        return sum(block.numel() for block in self._blocks)

    def like(self, x: torch.Tensor) -> torch.Tensor:
        """As `torch.empty_like`, with the strides of `x` where it is dense."""
        size = x.numel() * x.element_size()
        if not size:
            return torch.empty_like(x)
        address = self._take(size)
        region = (ctypes.c_char * size).from_address(address)
        back = (address, _rounded(size))
        weakref.finalize(region, self._returned.append, back).atexit = False
        flat = torch.frombuffer(region, dtype=x.dtype)
        return flat.as_strided(x.shape, _dense_strides(x))

    def _take(self, size: int) -> int:
        """The lowest free address with room: it was used last and is still near."""
        size = _rounded(size)
        while self._returned:
            self._give(*self._returned.pop())
        for index, (address, room) in enumerate(self._free):
            if room >= size:
                left = [(address + size, room - size)] if room > size else []
                self._free[index : index + 1] = left
                return address
        room = max(_BLOCK, size)
        block = torch.empty(room + _LINE, dtype=torch.uint8)
        self._blocks.append(block)
        self._give(_rounded(block.data_ptr()), room)
        return self._take(size)

    def _give(self, address: int, size: int) -> None:
        insort(self._free, (address, size))
        joined: list[tuple[int, int]] = []
        for begin, room in self._free:
            if joined and sum(joined[-1]) == begin:
                joined[-1] = (joined[-1][0], joined[-1][1] + room)
            else:
                joined.append((begin, room))
        self._free = joined


def _rounded(size: int) -> int:
    return -(-size // _LINE) * _LINE


def _dense_strides(x: torch.Tensor) -> tuple[int, ...]:
    """Those of `x` if its elements lie side by side, else those of its shape."""
    by_stride = sorted((s, n) for s, n in zip(x.stride(), x.shape, strict=True) if n > 1)
    expected = 1
    for stride, count in by_stride:
        if stride != expected:
            return tuple(prod(x.shape[i + 1 :]) for i in range(x.dim()))
        expected *= count
    return x.stride()
