"""allmetal on AMD GPUs through ROCm: it finds devices and cannot drive them yet."""

from __future__ import annotations

from allmetal_rocm.platform import RocmPlatform

__all__ = ["RocmPlatform"]
