"""The cpu platform against the conformance kit."""

from __future__ import annotations

import pytest

from allmetal.platform.contract import Platform
from allmetal.testing.conformance import PlatformConformance
from allmetal_cpu import CpuPlatform


class TestCpu(PlatformConformance):
    @pytest.fixture
    def platform(self) -> Platform:
        return CpuPlatform()
