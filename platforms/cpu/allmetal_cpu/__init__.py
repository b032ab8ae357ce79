"""allmetal on CPUs: kernels in C++ where they could be built, in torch where not."""

from __future__ import annotations

from allmetal_cpu.platform import CpuPlatform

__all__ = ["CpuPlatform"]
