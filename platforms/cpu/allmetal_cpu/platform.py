"""The cpu platform: the host as one device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from allmetal.platform.contract import (
    DEFAULT_OPTIONS,
    AnyKernel,
    CapabilityTable,
    Device,
    DeviceInfo,
    OpenOptions,
    Probe,
)
from allmetal_cpu import capabilities
from allmetal_cpu.probe import probe


class CpuPlatform:
    """One device, always there.  `root` is where the file system begins."""

    name = "cpu"
    contract_version = 1

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = root

    def probe(self) -> Probe:
        return [probe(self._root)]

    def open(self, device: DeviceInfo, options: OpenOptions = DEFAULT_OPTIONS) -> Device:
        from allmetal_cpu.device import CpuDevice

        return CpuDevice(device, options, self._root)

    def capabilities(self, device: DeviceInfo) -> CapabilityTable:
        return capabilities.table(device)

    def kernels(self, device: DeviceInfo) -> Mapping[str, Sequence[AnyKernel]]:
        from allmetal_cpu.kernels import kernels

        return kernels(device)
