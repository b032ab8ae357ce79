"""allmetal on Intel GPUs.  Compiled and interpreted; never run on a device yet."""

from __future__ import annotations

from allmetal_xpu.platform import XpuPlatform

__all__ = ["XpuPlatform"]
