"""Acme One, opened."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from allmetal.platform.contract import (
    Advice,
    CommunicatorFactory,
    DeviceInfo,
    GraphCapture,
    Memory,
    ModelFacts,
    Streams,
)


@dataclass(frozen=True, slots=True)
class AcmeDevice:
    info: DeviceInfo
    torch_device: str = "cpu"
    asynchronous: bool = False
    streams: Streams | None = None
    graphs: GraphCapture | None = None
    communicator: CommunicatorFactory | None = None

    def memory(self) -> Memory:
        return Memory(free=self.info.total_memory, total=self.info.total_memory)

    def synchronize(self) -> None: ...
    def close(self) -> None: ...
    def pin(self, x: torch.Tensor) -> torch.Tensor:
        return x

    def versions(self) -> Mapping[str, str]:
        return {"firmware": "2.0"}

    def advice(self, model: ModelFacts) -> Advice:
        return Advice(dtype="float32", dtype_reason="the only type Acme One computes in")
