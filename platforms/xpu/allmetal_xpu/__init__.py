"""allmetal on Intel GPUs through Level Zero: it finds devices and cannot drive them yet."""

from __future__ import annotations

from allmetal_xpu.platform import XpuPlatform

__all__ = ["XpuPlatform"]
