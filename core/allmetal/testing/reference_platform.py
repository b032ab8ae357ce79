"""The reference kernels as a platform of their own, on the host: what is right, end to end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from allmetal.platform.contract import AnyKernel, CapabilityTable, DeviceInfo, Probe
from allmetal.platform.null import NullPlatform
from allmetal.platform.reference import kernels


class ReferencePlatform(NullPlatform):
    """A pretend device whose kernels compute."""

    name = "reference"

    def probe(self) -> Probe:
        traits = {"kind": "pretend"}
        return [DeviceInfo(index=0, name="reference", total_memory=1 << 30, traits=traits)]

    def capabilities(self, device: DeviceInfo) -> CapabilityTable:
        """Silent, so that what the core does by itself counts."""
        return {}

    def kernels(self, device: DeviceInfo) -> Mapping[str, Sequence[AnyKernel]]:
        return kernels()
