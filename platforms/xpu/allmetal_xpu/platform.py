"""The xpu platform.  Probing works; the device layer and the kernels are not written yet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from allmetal.errors import PlatformError
from allmetal.platform.capabilities import FEATURES
from allmetal.platform.contract import (
    DEFAULT_OPTIONS,
    AnyKernel,
    CapabilityTable,
    Device,
    DeviceInfo,
    OpenOptions,
    Probe,
    Unsupported,
)
from allmetal_xpu.probe import probe

_MISSING = "allmetal-xpu has no device layer and no kernels yet"


class XpuPlatform:
    """Finds devices and refuses to open them.  `root` is where the file system begins."""

    name = "xpu"
    contract_version = 1

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = root

    def probe(self) -> Probe:
        return probe(self._root)

    def open(self, device: DeviceInfo, options: OpenOptions = DEFAULT_OPTIONS) -> Device:
        raise PlatformError(
            f"{device.name} was found, but cannot be used: {_MISSING}", hint="--platform cpu"
        )

    def capabilities(self, device: DeviceInfo) -> CapabilityTable:
        return {feature: Unsupported(_MISSING) for feature in FEATURES}

    def kernels(self, device: DeviceInfo) -> Mapping[str, Sequence[AnyKernel]]:
        return {}
