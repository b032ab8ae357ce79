"""The reference kernels, as a platform of their own, against the conformance kit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from allmetal.platform.contract import AnyKernel, DeviceInfo, Platform
from allmetal.platform.null import NullPlatform
from allmetal.platform.reference import kernels
from allmetal.testing.conformance import PlatformConformance


class ReferencePlatform(NullPlatform):
    """The pretend device, with kernels that compute."""

    name = "reference"

    def kernels(self, device: DeviceInfo) -> Mapping[str, Sequence[AnyKernel]]:
        return kernels()


class TestReference(PlatformConformance):
    @pytest.fixture
    def platform(self) -> Platform:
        return ReferencePlatform()
