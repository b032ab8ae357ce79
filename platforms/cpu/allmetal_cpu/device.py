"""The host as an opened device: plain torch tensors, work done when a call returns."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch

from allmetal.platform.contract import (
    Advice,
    CommunicatorFactory,
    DeviceInfo,
    GraphCapture,
    Memory,
    ModelFacts,
    OpenOptions,
    Streams,
)
from allmetal_cpu import advice, limits
from allmetal_cpu.native import library


class CpuDevice:
    """Sets torch's thread count when opened: the cores this process was given, unless told."""

    torch_device = "cpu"
    asynchronous = False
    streams: Streams | None = None
    communicator: CommunicatorFactory | None = None

    def __init__(self, info: DeviceInfo, options: OpenOptions, root: Path) -> None:
        self.info = info
        self._root = root
        self.threads = options.threads or int(info.traits["cores"])
        torch.set_num_threads(self.threads)
        library.set_threads(self.threads)
        self._graphs: GraphCapture | None = None

    @property
    def graphs(self) -> GraphCapture | None:
        """None without the C++ library."""
        loaded = library.load()
        if self._graphs is None and isinstance(loaded, library.Library):
            from allmetal_cpu.recording import CpuGraphs

            self._graphs = CpuGraphs(loaded)
        return self._graphs

    def memory(self) -> Memory:
        return limits.memory(self._root)

    def synchronize(self) -> None:
        """Nothing is ever pending."""

    def pin(self, x: torch.Tensor) -> torch.Tensor:
        return x

    def versions(self) -> Mapping[str, str]:
        loaded = library.load()
        return {
            "torch": torch.__version__,
            "kernel": self.info.driver,
            "threads": str(self.threads),
            "native library": loaded.isa if isinstance(loaded, library.Library) else loaded.reason,
        }

    def advice(self, model: ModelFacts) -> Advice:
        return advice.advise(self.info, model, self.memory())

    def close(self) -> None:
        """Nothing is held."""
