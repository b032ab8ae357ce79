"""allmetal on Acme's accelerators: kernels, 8-bit weights, recorded steps and several ranks."""

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

MEMORY = 8 << 30


class AcmePlatform:
    name, contract_version = "acme", 1

    def probe(self) -> Probe:
        return [DeviceInfo(index=0, name="Acme One", total_memory=MEMORY)]

    def open(self, device: DeviceInfo, options: OpenOptions = DEFAULT_OPTIONS) -> Device:
        from allmetal_acme.device import AcmeDevice

        return AcmeDevice(device)

    def capabilities(self, device: DeviceInfo) -> CapabilityTable:
        return {
            "dtype.float32": Emulated("reference kernels"),
            "prefix_caching": Native("blocks"),
            "attention.sliding_window": Native("acme_attention"),
            "quant.int8": Native("acme_int8"),
            "graph_capture": Native("tapes"),
            "collective.all_reduce": Native("acme_star"),
            "collective.all_gather": Native("acme_star"),
        }

    def kernels(self, device: DeviceInfo) -> Mapping[str, Sequence[AnyKernel]]:
        from allmetal_acme.attention import AcmeAttention
        from allmetal_acme.linear import AcmeInt8

        return {"attention": (AcmeAttention(),), "linear": (AcmeInt8(),)}
