"""A file mapped into memory for reading."""

from __future__ import annotations

import contextlib
import mmap
import os
import sys
import time
import weakref
from pathlib import Path

import numpy as np

from allmetal.errors import CheckpointError
from allmetal.platform import mapped_memory

_NORESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000 if sys.platform == "linux" else 0)
"""Python 3.11 does not know its number, which is Linux's on x86, Arm and RISC-V."""

# Written pages, which nobody should make, stay this process's own.  Without a reserve for them, so
# that a file may be larger than the memory.
_KIND: dict[str, int] = (
    {"flags": mmap.MAP_PRIVATE | _NORESERVE, "prot": mmap.PROT_READ | mmap.PROT_WRITE}
    if sys.platform != "win32"
    else {"access": mmap.ACCESS_COPY}
)


class MappedFile:
    """Pages are read when they are touched, and dropped by the system as it likes.  Writing to them
    does not change the file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with path.open("rb") as file:
                stat = os.fstat(file.fileno())
                self.version = (stat.st_dev, stat.st_ino, stat.st_mtime_ns, stat.st_size)
                """Another one where the content is another, if the file has settled."""
                self.has_settled = time.time() - stat.st_mtime > 2  # clocks of files are coarse
                self._map = mmap.mmap(file.fileno(), 0, **_KIND)
        except ValueError:
            raise CheckpointError(
                f"{path} is empty", hint="it was probably not downloaded to its end: fetch it again"
            ) from None
        except OSError as e:
            raise CheckpointError(f"{path} cannot be read: {e.strerror or e}") from e
        self.view = memoryview(self._map)
        where = mapped_memory.note(np.frombuffer(self.view, np.uint8).ctypes.data, len(self._map))
        # Called before the memory goes, be it here or with the last view of it.
        self._forget = weakref.finalize(self._map, mapped_memory.forget, where)

    def __len__(self) -> int:
        return len(self._map)

    def close(self) -> None:
        """Views that are still in use keep the memory mapped until they go."""
        self.view.release()
        with contextlib.suppress(BufferError):
            self._map.close()
            self._forget()


def give_back(view: memoryview) -> None:
    """The pages that lie within a mapped view leave this process; they are read again if they are
    touched again, from the system's cache while it has them.  Best effort."""
    mapped_memory.give_back(np.frombuffer(view, np.uint8).ctypes.data, view.nbytes)
