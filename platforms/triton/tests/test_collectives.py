"""The collectives of torch, as the GPU platforms use them, with gloo between processes of the host
for RCCL, NCCL or oneCCL between GPUs: the kit's own tests of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from allmetal.errors import PlatformError
from allmetal.platform.contract import (
    DEFAULT_OPTIONS,
    CapabilityTable,
    CommunicatorFactory,
    Device,
    DeviceInfo,
    Native,
    OpenOptions,
    Platform,
)
from allmetal.platform.null import NullDevice
from allmetal.testing.conformance.devices import DevicesConformance
from allmetal.testing.reference_platform import ReferencePlatform
from allmetal_triton.device.collectives import TorchCollectives


@dataclass(frozen=True, slots=True)
class Grouped(NullDevice):
    communicator: CommunicatorFactory = field(  # type: ignore[assignment]
        default_factory=lambda: TorchCollectives("gloo", "cpu")
    )


class GroupedPlatform(ReferencePlatform):
    def open(self, device: DeviceInfo, options: OpenOptions = DEFAULT_OPTIONS) -> Device:
        return Grouped(device)

    def capabilities(self, device: DeviceInfo) -> CapabilityTable:
        ours = {f"collective.{name}": Native("gloo") for name in ("all_reduce", "all_gather")}
        return {**super().capabilities(device), **ours}


class TestCollectives(DevicesConformance):
    @pytest.fixture
    def platform(self) -> Platform:
        return GroupedPlatform()

    @pytest.fixture
    def rank_devices(self, platform: Platform, device_info: DeviceInfo) -> Sequence[DeviceInfo]:
        return [replace(device_info, index=index) for index in range(2)]


def test_a_build_without_the_back_end_is_named(tmp_path: Path) -> None:
    with pytest.raises(PlatformError, match="was built without xccl"):
        TorchCollectives("xccl", "xpu:0")(rank=0, size=1, address="127.0.0.1:0")
