"""allmetal on Huawei Ascend NPUs through torch_npu.  Emulated; never run on a device yet."""

from __future__ import annotations

from allmetal_ascend.platform import AscendPlatform

__all__ = ["AscendPlatform"]
