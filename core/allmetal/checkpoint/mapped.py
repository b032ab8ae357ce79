"""A file mapped into memory for reading."""

from __future__ import annotations

import contextlib
import mmap
from pathlib import Path

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
