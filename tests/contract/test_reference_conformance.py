"""The reference kernels, as a platform of their own, against the conformance kit."""

from __future__ import annotations

import pytest
import torch

from allmetal.platform.contract import (
    DEFAULT_OPTIONS,
    Absent,
    Device,
    DeviceInfo,
    OpenOptions,
    Platform,
    Probe,
)
from allmetal.platform.null import NullDevice
from allmetal.testing.conformance import PlatformConformance
from allmetal.testing.reference_platform import ReferencePlatform


class AcceleratorPlatform(ReferencePlatform):
    """The same kernels on whatever accelerator torch sees."""

    def probe(self) -> Probe:
        accelerator = torch.accelerator.current_accelerator(check_available=True)
        if accelerator is None:
            return Absent("torch sees no accelerator")
        return [DeviceInfo(index=0, name=accelerator.type, total_memory=0)]

    def open(self, device: DeviceInfo, options: OpenOptions = DEFAULT_OPTIONS) -> Device:
        return Accelerator(device, torch_device=device.name, asynchronous=True)


class Accelerator(NullDevice):
    def synchronize(self) -> None:
        torch.accelerator.synchronize()


class TestReference(PlatformConformance):
    @pytest.fixture
    def platform(self) -> Platform:
        return ReferencePlatform()


class TestReferenceOnAnAccelerator(PlatformConformance):
    @pytest.fixture
    def platform(self) -> Platform:
        return AcceleratorPlatform()
