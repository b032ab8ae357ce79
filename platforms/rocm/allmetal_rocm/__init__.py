"""allmetal on AMD GPUs through ROCm.  Compiled and interpreted; never run on a device yet."""

from __future__ import annotations

from allmetal_rocm.platform import RocmPlatform

__all__ = ["RocmPlatform"]
