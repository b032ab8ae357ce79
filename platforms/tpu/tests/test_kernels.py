"""The kit's first level, over the kernels that XLA compiles, computed by torch on the host: they
are plain torch, so what they compute is checked where there is no compiler for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from allmetal.platform.contract import (
    DEFAULT_OPTIONS,
    AnyKernel,
    CapabilityTable,
    Device,
    DeviceInfo,
    OpenOptions,
    Platform,
    Probe,
)
from allmetal.platform.null import NullDevice
from allmetal.testing.conformance import PlatformConformance
from allmetal_tpu.kernels import xla_kernels

HOST = DeviceInfo(index=0, name="the host, by torch", total_memory=1 << 30)


class OnHost:
    name = "tpu_kernels_on_the_host"
    contract_version = 1

    def probe(self) -> Probe:
        return [HOST]

    def open(self, device: DeviceInfo, options: OpenOptions = DEFAULT_OPTIONS) -> Device:
        return NullDevice(device)

    def capabilities(self, device: DeviceInfo) -> CapabilityTable:
        return {}

    def kernels(self, device: DeviceInfo) -> Mapping[str, Sequence[AnyKernel]]:
        return xla_kernels()


class TestKernels(PlatformConformance):
    @pytest.fixture
    def platform(self) -> Platform:
        return OnHost()
