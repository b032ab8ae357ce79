"""MLX's arithmetic, behind the bridge, against the conformance kit."""

from __future__ import annotations

import pytest

from allmetal.platform.contract import Platform
from allmetal.testing.conformance import PlatformConformance
from allmetal_mlx import MlxPlatform


class TestMlx(PlatformConformance):
    @pytest.fixture
    def platform(self) -> Platform:
        return MlxPlatform()
