"""The platform's kernels by family."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from allmetal.platform.contract import AnyKernel, DeviceInfo


def kernels(device: DeviceInfo) -> Mapping[str, Sequence[AnyKernel]]:
    return {}
