"""A file mapped into memory for reading."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
from pathlib import Path

import numpy as np

from allmetal.errors import CheckpointError


class MappedFile:
    """Read-only; pages are read when they are touched, and dropped by the system as it likes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with path.open("rb") as file:
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except ValueError:
            raise CheckpointError(
                f"{path} is empty", hint="it was probably not downloaded to its end: fetch it again"
            ) from None
        except OSError as e:
            raise CheckpointError(f"{path} cannot be read: {e.strerror or e}") from e
        self.view = memoryview(self._map)

    def __len__(self) -> int:
        return len(self._map)

    def close(self) -> None:
        """Views that are still in use keep the memory mapped until they go."""
        self.view.release()
        with contextlib.suppress(BufferError):
            self._map.close()


def give_back(view: memoryview) -> None:
    """The pages that lie within a mapped view leave this process; they are read again if they are
    touched again, from the system's cache while it has them.  Best effort."""
    if not hasattr(mmap, "MADV_DONTNEED"):
        return
    begin = np.frombuffer(view, np.uint8).ctypes.data
    first = -(-begin // mmap.PAGESIZE) * mmap.PAGESIZE
    length = (begin + view.nbytes - first) // mmap.PAGESIZE * mmap.PAGESIZE
    if length > 0:
        # mmap's own method would need to know where in the file the view lies.
        madvise = ctypes.CDLL(None).madvise
        madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
        madvise(first, length, mmap.MADV_DONTNEED)
