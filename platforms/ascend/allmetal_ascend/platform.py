"""The ascend platform."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from allmetal.errors import PlatformError
from allmetal.platform.contract import (
    DEFAULT_OPTIONS,
    AnyKernel,
    CapabilityTable,
    Device,
    DeviceInfo,
    OpenOptions,
    Probe,
)
from allmetal_ascend import capabilities
from allmetal_ascend.probe import probe
from allmetal_ascend.software import Packages, installed


class AscendPlatform:
    """Huawei Ascend NPUs.  `root` is where the file system begins; `packages` says what is
    installed into this Python."""

    name = "ascend"
    contract_version = 1

    def __init__(
        self, root: Path = Path("/"), packages: Callable[[], Packages] = installed
    ) -> None:
        self._root, self._packages = root, packages

    def probe(self) -> Probe:
        return probe(self._root, self._packages())

    def open(self, device: DeviceInfo, options: OpenOptions = DEFAULT_OPTIONS) -> Device:
        try:
            from allmetal_ascend.device import open_device
        except RuntimeError as error:  # torch's words for an extension that does not load
            raise PlatformError(
                f"{device.name} cannot be used: {str(error).splitlines()[0]}",
                hint="source /usr/local/Ascend/ascend-toolkit/set_env.sh",
            ) from error
        return open_device(device)

    def capabilities(self, device: DeviceInfo) -> CapabilityTable:
        return capabilities.table(device)

    def kernels(self, device: DeviceInfo) -> Mapping[str, Sequence[AnyKernel]]:
        from allmetal_ascend.kernels import kernels

        return kernels(device)
