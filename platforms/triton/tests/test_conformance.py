"""The kit, over a platform that has these kernels and nothing else, on the host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import torch

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

pytest.importorskip("triton", reason="needs triton")
from allmetal_triton.kernels import kernels
from allmetal_triton.target import Target

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU's own platform runs the kit"),
]

HOST = DeviceInfo(index=0, name="the host, by Triton's interpreter", total_memory=1 << 30)


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
        return Advice()

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
        exact = ("float32", "float16")  # bfloat16 is computed wrongly
        return kernels(
            Target(num_cores=lambda: 8, shared_memory=101_376, dtypes=exact, cache_dtypes=exact)
        )


class TestTriton(PlatformConformance):
    @pytest.fixture
    def platform(self) -> Platform:
        return InterpretedPlatform()
