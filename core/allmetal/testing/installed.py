"""The test file that `allmetal.testing.kit` hands to pytest: the kit, for a platform given by the
run itself.
"""

from __future__ import annotations

import pytest

from allmetal.platform.contract import DeviceInfo, Platform
from allmetal.testing.conformance import PlatformConformance
from allmetal.testing.conformance.base import first_device
from allmetal.testing.kit import DEVICE, PLATFORM


class TestPlatform(PlatformConformance):
    @pytest.fixture
    def platform(self, request: pytest.FixtureRequest) -> Platform:
        return request.config.stash[PLATFORM]

    @pytest.fixture
    def device_info(self, request: pytest.FixtureRequest, platform: Platform) -> DeviceInfo:
        return request.config.stash.get(DEVICE, None) or first_device(platform)
