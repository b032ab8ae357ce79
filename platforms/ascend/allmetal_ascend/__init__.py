"""allmetal on Huawei Ascend NPUs through CANN: it finds devices and cannot drive them yet."""

from __future__ import annotations

from allmetal_ascend.platform import AscendPlatform

__all__ = ["AscendPlatform"]
