"""The kit over these kernels, interpreted on the host, with the reference for all else."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest
import torch
from carrying import carry

from allmetal.platform.contract import (
    CONTRACT_VERSION,
    DEFAULT_OPTIONS,
    Advice,
    AnyKernel,
    CapabilityTable,
    DeviceInfo,
    Memory,
    ModelFacts,
    OpenOptions,
    Platform,
    Probe,
)
from allmetal.testing.conformance import PlatformConformance
from allmetal_tpu.pallas import kernels

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

HOST = DeviceInfo(
    index=0,
    name="the host, by Pallas's interpreter",
    total_memory=1 << 30,
    traits={"evidence": "emulated"},
)


class InterpretedDevice:
    info = HOST
    torch_device = "cpu"
    asynchronous = False
    streams = graphs = communicator = None

    def memory(self) -> Memory:
        return Memory(free=1 << 30, total=1 << 30)

    def synchronize(self) -> None: ...

    def pin(self, x: torch.Tensor) -> torch.Tensor:
        return x

    def versions(self) -> Mapping[str, str]:
        return {"torch": torch.__version__}

    def advice(self, model: ModelFacts) -> Advice:
        return Advice(block_size=32)

    def close(self) -> None: ...


class InterpretedPlatform:
    name = "interpreted"
    contract_version = CONTRACT_VERSION

    def probe(self) -> Probe:
        return [HOST]

    def open(self, device: DeviceInfo, options: OpenOptions = DEFAULT_OPTIONS) -> Any:
        return InterpretedDevice()

    def capabilities(self, device: DeviceInfo) -> CapabilityTable:
        return {}

    def kernels(self, device: DeviceInfo) -> Mapping[str, Sequence[AnyKernel]]:
        return kernels("v7x", interpret=True)


class TestConformance(PlatformConformance):
    @pytest.fixture(scope="session", autouse=True)
    def through_memory(self) -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            carry(patch)
            yield

    @pytest.fixture(scope="session")
    def platform(self) -> Platform:
        return InterpretedPlatform()
