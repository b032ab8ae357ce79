"""Which addresses are a file's, mapped into this process: their pages may be given back at any
time, since they are read again when they are touched again.
"""

from __future__ import annotations

import ctypes
import mmap
import threading

_lock = threading.RLock()
# Entered again where the collector of rubbish, at work within, closes another file.
_ranges: set[tuple[int, int]] = set()


def note(begin: int, nbytes: int) -> tuple[int, int]:
    """A file lies here from now on; `forget` takes what this returns."""
    with _lock:
        _ranges.add((begin, begin + nbytes))
    return begin, begin + nbytes


def forget(where: tuple[int, int]) -> None:
    """The file does not lie there any more, or will not in a moment."""
    with _lock:
        _ranges.discard(where)


def give_back(begin: int, nbytes: int) -> bool:
    """The pages within leave this process, if all are a file's; whether they are.  Best effort."""
    with _lock:
        if not any(low <= begin and begin + nbytes <= high for low, high in tuple(_ranges)):
            return False
        first = -(-begin // mmap.PAGESIZE) * mmap.PAGESIZE
        length = (begin + nbytes - first) // mmap.PAGESIZE * mmap.PAGESIZE
        if length > 0 and hasattr(mmap, "MADV_DONTNEED"):
            # mmap's own method would need to know where in the file they lie.
            madvise = ctypes.CDLL(None).madvise
            madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
            madvise(first, length, mmap.MADV_DONTNEED)
        return True
