"""Large pieces of the host's memory."""

from __future__ import annotations

import mmap
from contextlib import suppress

import torch

LARGE = 4 << 20
"""Bytes from which large pages are worth asking for."""


def zeroed_pages(size: int) -> torch.Tensor:
    """[size] uint8 of zeros, in large pages where the system has them.

    Pages are taken when they are first written: what is never used costs nothing.
    """
    pages = mmap.mmap(-1, size)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # a kernel built without them
            pages.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(pages, dtype=torch.uint8)
