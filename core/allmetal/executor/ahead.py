"""Torch's libraries, linked while Python is busy with something else.

A sixth of importing torch is the linker's work, which needs no interpreter.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import sys
import threading
from pathlib import Path

from allmetal.config import let_threads_sleep

_HOST_ONLY = frozenset({"libtorch_cpu", "libtorch_python", "libtorch_global_deps"})


def link_ahead() -> None:
    """Begins, and returns at once.  Whatever is in the way is met again when torch is imported."""
    if sys.platform != "linux" or "torch" in sys.modules:
        return
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return
    folder = Path(spec.origin).parent / "lib"
    # Builds for other devices bring libraries that torch loads in an order of its own.
    if any(path.stem not in _HOST_ONLY for path in folder.glob("libtorch_*.so")):
        return
    let_threads_sleep()  # read when OpenMP's library is linked, which is now
    # Through ctypes' call of the function, and not by ctypes.CDLL, which keeps the interpreter's
    # lock.
    arguments = str(folder / "libtorch_python.so").encode(), os.RTLD_NOW
    # Not a daemon: a process that ends while its libraries are set up crashes on the way out.
    threading.Thread(target=ctypes.CDLL(None).dlopen, args=arguments).start()
