"""allmetal on Google TPUs: it finds devices and cannot drive them yet."""

from __future__ import annotations

from allmetal_tpu.platform import TpuPlatform

__all__ = ["TpuPlatform"]
