"""TorchTPU on this machine's CPU: its real runtime and compiler calls, and XLA's CPU client at the
other end, through `pjrt_shim.c`.

`start()` comes before anything imports torch in a process that has TorchTPU installed.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import types
import warnings
from functools import cache
from pathlib import Path
from typing import Any

from allmetal.testing.machine import add_pci_device, write_files

V5E = 0x0063
_SOURCE = Path(__file__).with_name("pjrt_shim.c")


@cache
def start() -> ctypes.CDLL:
    """The device type `tpu`, on XLA's CPU client; the shim, to be asked what it counts."""
    os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"  # it looks for hardware while torch loads
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    shim = _built()
    os.environ["SHIM_PLUGIN"] = str(_plugin() / "xla_cpu_pjrt.so")
    os.environ["TPU_LIBRARY_PATH"] = str(shim)
    # The real one would point at its own library, which wants a TPU.
    sys.modules["libtpu"] = types.ModuleType("libtpu")
    sys.modules["libtpu"].configure_library_path = lambda: None  # type: ignore[attr-defined]
    warnings.filterwarnings("ignore", message="<TorchTpu/")
    loader: Any = importlib.import_module("torch_tpu._loader")
    hardware: Any = importlib.import_module("torch_tpu._internal.utils.hardware")
    hardware.get_tpu_device_count = lambda: 1
    loader._init_device("tpu")
    loader._LOADED = True
    return ctypes.CDLL(str(shim))


def compilations() -> int:
    """Programs compiled by this process so far, of whatever size."""
    return int(start().shim_compilations())


def machine(root: Path, device: int = V5E) -> Path:
    """A machine with one TPU, as files below `root`."""
    add_pci_device(
        root, "0000:00:04.0", vendor=0x1AE0, device=device, base_class=0xFF, driver="vfio-pci"
    )
    write_files(root, {"dev/vfio/0": ""})
    return root


def _plugin() -> Path:
    spec = importlib.util.find_spec("xla_plugins.xla_cpu_pjrt")
    if spec is None or spec.origin is None:
        raise RuntimeError("needs the package xla-cpu-pjrt")
    return Path(spec.origin).parent


def _built() -> Path:
    """Compiled once for its text."""
    name = hashlib.sha256(_SOURCE.read_bytes()).hexdigest()[:16]
    made = Path(tempfile.gettempdir()) / f"allmetal-pjrt-shim-{os.getuid()}-{name}.so"
    if not made.exists():
        compiler = shutil.which("cc") or shutil.which("gcc") or "cc"
        part = made.with_suffix(f".{os.getpid()}")
        headers = _plugin() / "include"
        command = [compiler, "-shared", "-fPIC", "-O1", f"-I{headers}", str(_SOURCE)]
        subprocess.run([*command, "-o", str(part), "-ldl"], check=True)
        part.replace(made)
    return made
