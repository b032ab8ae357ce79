"""Large pages for weights: a step walks through all of them, and with small pages the walk through
the page tables takes a fifth of the time.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
from collections.abc import Iterator

import torch

from allmetal.platform import mapped_memory

_COLLAPSE = 25
"""MADV_COLLAPSE of Linux 6.1: make large pages of what is there already, at once."""

_WORTH_IT = 4 << 20

_PART = 16 << 20
"""Bytes that are read before their pages are given back."""


def prefer_large(x: torch.Tensor) -> None:
    """Best effort: asks, and does not mind being refused."""
    size = x.numel() * x.element_size()
    if sys.platform != "linux" or size < _WORTH_IT:
        return
    begin = -(-x.data_ptr() // mmap.PAGESIZE) * mmap.PAGESIZE
    length = (x.data_ptr() + size - begin) // mmap.PAGESIZE * mmap.PAGESIZE
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    for advice in (mmap.MADV_HUGEPAGE, _COLLAPSE):
        madvise(begin, length, advice)


def to_large_pages(x: torch.Tensor) -> torch.Tensor:
    """What is read at every step, contiguous and in large pages as far as they can be had.

    Memory that torch does not manage is copied: it may be a checkpoint's file, whose pages are
    small and may be taken away.
    """
    x = x.contiguous()
    if not x.untyped_storage().resizable():
        kept = torch.empty_like(x)
        prefer_large(kept)
        for begin, end in parts(x):
            kept[begin:end].copy_(x[begin:end])
            give_back(x[begin:end])
        return kept
    prefer_large(x)
    return x


def parts(x: torch.Tensor, multiple: int = 1) -> Iterator[tuple[int, int]]:
    """Rows [begin, end) of some megabytes each, a multiple of so many but for the last."""
    rows = x.shape[0]
    step = max(1, _PART * rows // max(1, x.numel() * x.element_size()) // multiple) * multiple
    for begin in range(0, rows, step):
        yield begin, min(rows, begin + step)


def give_back(x: torch.Tensor) -> None:
    """Rows that were read for the last time, if they lie in a checkpoint's file."""
    mapped_memory.give_back(x.data_ptr(), x.numel() * x.element_size())
