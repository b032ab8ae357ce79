"""What MLX would run on, without importing it."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

from allmetal.platform.contract import Absent, Broken, DeviceInfo, Probe


def probe() -> Probe:
    """Apple's GPU on a Mac with one; elsewhere MLX's CPU back end, which nobody gets unasked."""
    system, machine = platform.system(), platform.machine()
    apple = (system, machine) == ("Darwin", "arm64")
    if not apple and system != "Linux":
        return Absent(f"MLX runs on Apple Silicon and Linux, not on {system} {machine}")
    if find_spec("mlx") is None:
        what = "there is Apple Silicon, but MLX is not installed: pip install mlx"
        return Broken(what) if apple else Absent("MLX is not installed: pip install 'mlx[cpu]'")
    try:
        driver = version("mlx")
    except PackageNotFoundError:
        driver = ""
    pages, size = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    return [
        DeviceInfo(
            index=0,
            name="Apple Silicon GPU" if apple else f"MLX's CPU back end on {machine}",
            total_memory=pages * size,
            arch=machine,
            driver=driver,
            traits={"kind": "accelerator" if apple else "pretend"},
        )
    ]
