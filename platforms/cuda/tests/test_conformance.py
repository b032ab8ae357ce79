"""The kit, on a GPU where there is one."""

from __future__ import annotations

import pytest

from allmetal.platform.contract import Platform
from allmetal.testing.conformance import PlatformConformance
from allmetal_cuda import CudaPlatform


class TestCuda(PlatformConformance):
    @pytest.fixture
    def platform(self) -> Platform:
        return CudaPlatform()
