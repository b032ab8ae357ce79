"""allmetal on Acme's accelerators: a kernel of our own for the hottest loop, decoding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from allmetal.platform.contract import (
    DEFAULT_OPTIONS,
    AnyKernel,
    CapabilityTable,
    Device,
    DeviceInfo,
    Emulated,
    Native,
    OpenOptions,
    Probe,
)

GIB = 1 << 30


class AcmePlatform:
    name, contract_version = "acme", 1

    def probe(self) -> Probe:
        return [DeviceInfo(index=0, name="Acme One", total_memory=GIB)]

    def open(self, device: DeviceInfo, options: OpenOptions = DEFAULT_OPTIONS) -> Device:
        from allmetal_acme.device import AcmeDevice

        return AcmeDevice(device)

    def capabilities(self, device: DeviceInfo) -> CapabilityTable:
        return {
            "dtype.float32": Emulated("reference kernels"),
            "prefix_caching": Native("blocks"),
            "attention.sliding_window": Native("acme_attention"),
        }

    def kernels(self, device: DeviceInfo) -> Mapping[str, Sequence[AnyKernel]]:
        from allmetal_acme.attention import AcmeAttention

        return {"attention": (AcmeAttention(),)}
