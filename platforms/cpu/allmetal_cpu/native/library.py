"""Find and load the C++ library, once a process, and say why where it cannot be had."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import cache
from pathlib import Path

_FILE = "liballmetal_cpu.so"


@dataclass(frozen=True, slots=True)
class Library:
    """`isa` is the instruction set its kernels were dispatched to on this CPU."""

    handle: ctypes.CDLL
    isa: str


@dataclass(frozen=True, slots=True)
class Unavailable:
    reason: str


@cache
def load() -> Library | Unavailable:
    import allmetal_cpu

    # An editable install puts what was built into another folder of the same package.
    places = [Path(folder) / _FILE for folder in allmetal_cpu.__path__]
    found = next((path for path in places if path.exists()), None)
    if found is None:
        return Unavailable("native library not built: reinstall allmetal-cpu with a C++ compiler")
    return Unavailable(f"native library not loaded: {found}")


def set_threads(threads: int) -> None:
    load()
