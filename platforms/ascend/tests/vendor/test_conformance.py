"""The kit, on the real torch_npu over stand-ins for CANN: how operators are called, what they
refuse, memory, streams, recordings.  Not a device's numbers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from machine import EmulatedAscend
from standin_cann.emulator import emulated

from allmetal.platform.contract import Platform
from allmetal.testing.conformance import (
    AttentionConformance,
    AttentionInputConformance,
    ContractConformance,
    DecodeStateConformance,
    ElementwiseConformance,
    EncoderAttentionConformance,
    LinearConformance,
    ModelConformance,
    MoEConformance,
    SamplingConformance,
    ServicesConformance,
)


@pytest.fixture(autouse=True)
def device() -> Iterator[None]:
    with emulated():
        yield


class TestAscend(
    ContractConformance,
    AttentionConformance,
    AttentionInputConformance,
    DecodeStateConformance,
    ElementwiseConformance,
    EncoderAttentionConformance,
    LinearConformance,
    MoEConformance,
    SamplingConformance,
    ServicesConformance,
):
    @pytest.fixture
    def platform(self) -> Platform:
        return EmulatedAscend()


@pytest.mark.slow
@pytest.mark.timeout(600)
class TestModels(ModelConformance):
    @pytest.fixture
    def platform(self) -> Platform:
        return EmulatedAscend()
