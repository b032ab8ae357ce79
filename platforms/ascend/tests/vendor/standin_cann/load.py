"""Put the libraries into this process, before torch_npu is imported."""

from __future__ import annotations

import ctypes
import os
import tempfile
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from standin_cann.build import build


@cache
def load() -> ctypes.CDLL:
    """Libraries that are loaded already satisfy those that ask for them by name, wherever they
    lie.  Returns the one with the functions."""
    # Launches go to the device at once, and not by way of a thread of torch_npu's.
    os.environ.setdefault("TASK_QUEUE_ENABLE", "0")
    os.environ.setdefault("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")
    import torch

    spec = find_spec("torch_npu")
    assert spec is not None
    assert spec.origin is not None
    folder = Path(tempfile.gettempdir()) / f"standin-cann-{os.getuid()}"
    torch_lib = Path(torch.__file__).parent / "lib"
    libraries = build(Path(spec.origin).parent, torch_lib, folder)
    loaded = [ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL) for path in libraries]
    return loaded[0]
