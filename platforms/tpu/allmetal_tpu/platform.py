"""The tpu platform."""

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
from allmetal_tpu import capabilities
from allmetal_tpu.probe import probe


class TpuPlatform:
    """Google TPUs, as TorchTPU drives them.  `root` is where the file system begins; `packages`:
    what is installed, looked up unless given.  `by_hand`: with kernels in Pallas, which nothing but
    a TPU runs."""

    name = "tpu"
    contract_version = 1

    def __init__(
        self,
        root: Path = Path("/"),
        packages: Mapping[str, str] | None = None,
        *,
        by_hand: bool = True,
    ) -> None:
        self._root, self._packages, self._by_hand = root, packages, by_hand

    def probe(self) -> Probe:
        return probe(self._root, self._packages)

    def open(self, device: DeviceInfo, options: OpenOptions = DEFAULT_OPTIONS) -> Device:
        from allmetal_tpu.device import open_device

        return open_device(device)

    def capabilities(self, device: DeviceInfo) -> CapabilityTable:
        return capabilities.table(device)

    def kernels(self, device: DeviceInfo) -> Mapping[str, Sequence[AnyKernel]]:
        from allmetal_tpu.kernels import kernels

        return kernels(device, by_hand=self._by_hand)
