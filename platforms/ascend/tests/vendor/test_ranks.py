"""The kit's level 3: torch's process group for HCCL in two processes, over collectives of the
stand-ins in shared memory."""

from __future__ import annotations

import pytest
from machine import EmulatedAscend

from allmetal.platform.contract import Platform
from allmetal.testing.conformance.devices import DevicesConformance


@pytest.mark.slow
@pytest.mark.timeout(600)
class TestRanks(DevicesConformance):
    @pytest.fixture
    def platform(self) -> Platform:
        return EmulatedAscend(2)
