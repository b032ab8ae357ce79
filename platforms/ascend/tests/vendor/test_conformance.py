"""The kit, on the real torch_npu over stand-ins for CANN: how operators are called, what they
refuse, memory, streams, recordings.  Not a device's numbers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from machine import EmulatedAscend
from standin_cann.emulator import emulated

from allmetal.platform.contract import Platform
from allmetal.testing.conformance import PlatformConformance


@pytest.fixture(autouse=True)
def device() -> Iterator[None]:
    with emulated():
        yield


class TestAscend(PlatformConformance):
    @pytest.fixture
    def platform(self) -> Platform:
        return EmulatedAscend()
