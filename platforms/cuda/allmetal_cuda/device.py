"""A GPU as torch drives it.

Opening checks that it can be driven and creates no context: that comes with the first tensor, in
the process that makes it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, suppress
from typing import Any, cast
from weakref import WeakSet

import torch

from allmetal.errors import GraphError, PlatformError
from allmetal.platform.contract import (
    Advice,
    CommunicatorFactory,
    DeviceInfo,
    Event,
    Graph,
    Memory,
    ModelFacts,
    Stream,
)
from allmetal_cuda import advice

OLDEST = (8, 0)
"""Ampere: the first with bfloat16 and asynchronous copies, which the kernels are written for."""


def open_device(info: DeviceInfo) -> CudaDevice:
    """Raises PlatformError where torch cannot drive the device, saying what to mend."""
    if torch.version.cuda is None:
        raise PlatformError(
            f"{info.name} cannot be used: torch {torch.__version__} was built without CUDA",
            hint="install a CUDA build of torch: https://pytorch.org/get-started/locally",
        )
    try:
        torch.cuda.init()
    except RuntimeError as error:  # torch's words, e.g. that the driver is too old
        raise PlatformError(
            f"{info.name} cannot be used: {str(error).splitlines()[0]}",
            hint=f"torch {torch.__version__} wants a driver for CUDA {torch.version.cuda}",
        ) from error
    ordinal = _ordinal(info)
    capability = torch.cuda.get_device_capability(ordinal)
    if capability < OLDEST:
        has, needs = (".".join(map(str, pair)) for pair in (capability, OLDEST))
        raise PlatformError(
            f"{info.name} has compute capability {has}; the kernels need {needs} or newer",
            hint="--platform cpu",
        )
    return CudaDevice(info, ordinal)


def _ordinal(info: DeviceInfo) -> int:
    """torch's number of the device: it counts the fastest first, and only those it may see."""
    address = info.traits.get("pci")
    count = torch.cuda.device_count()
    if address is None:
        return min(info.index, count - 1)
    for ordinal in range(count):
        facts: Any = torch.cuda.get_device_properties(ordinal)
        where = f"{facts.pci_domain_id:04x}:{facts.pci_bus_id:02x}:{facts.pci_device_id:02x}.0"
        if address == where:
            return ordinal
    raise PlatformError(
        f"{info.name} at {address} is hidden from this process",
        hint="CUDA_VISIBLE_DEVICES leaves it out",
    )


class CudaDevice:
    asynchronous = True
    communicator: CommunicatorFactory | None = None

    def __init__(self, info: DeviceInfo, ordinal: int) -> None:
        self.info = info
        self.torch_device = f"cuda:{ordinal}"
        self.streams = CudaStreams(self.torch_device)
        self.graphs = CudaGraphs(self.torch_device)
        if ordinal:
            torch.cuda.set_device(ordinal)  # where launches of this thread go

    def memory(self) -> Memory:
        """What the allocator holds and does not use counts as free."""
        free, total = torch.cuda.mem_get_info(self.torch_device)
        kept = torch.cuda.memory_reserved(self.torch_device)
        used = torch.cuda.memory_allocated(self.torch_device)
        return Memory(free=free + kept - used, total=total)

    def synchronize(self) -> None:
        torch.cuda.synchronize(self.torch_device)

    def pin(self, x: torch.Tensor) -> torch.Tensor:
        return x.pin_memory()

    def versions(self) -> Mapping[str, str]:
        import triton  # pyright: ignore[reportMissingImports]

        return {
            "torch": torch.__version__,
            "cuda": torch.version.cuda or "",
            "driver": self.info.driver,
            "triton": triton.__version__,
        }

    def advice(self, model: ModelFacts) -> Advice:
        return advice.advise(self.info, model)

    def close(self) -> None:
        """Gives back what the allocator keeps; torch holds the context as long as the process."""
        if torch.cuda.is_initialized():
            torch.cuda.empty_cache()


class CudaStreams:
    def __init__(self, torch_device: str) -> None:
        self._device = torch_device

    def stream(self) -> Stream:
        return CudaStream(torch.cuda.Stream(self._device))

    def event(self) -> Event:
        return cast("Event", torch.cuda.Event())


class CudaStream:
    def __init__(self, stream: torch.cuda.Stream) -> None:
        self._stream = stream

    def use(self) -> AbstractContextManager[None]:
        return cast("AbstractContextManager[None]", torch.cuda.stream(self._stream))

    def wait(self, event: Event) -> None:
        self._stream.wait_event(cast("torch.cuda.Event", event))


class CudaGraphs:
    """Records launches as CUDA graphs in one pool of memory."""

    def __init__(self, torch_device: str) -> None:
        self._device = torch_device
        self._pool: Any = None
        self._stream: torch.cuda.Stream | None = None
        self._graphs: WeakSet[torch.cuda.CUDAGraph] = WeakSet()

    def capture(self, run: Callable[[], object]) -> Graph:
        if self._stream is None:
            self._stream = torch.cuda.Stream(self._device)
        if not self._graphs:
            # The allocator lets a pool go with its last graph, also one that failed, and takes
            # its name for an error from then on.
            self._pool = torch.cuda.graph_pool_handle()
        graph = torch.cuda.CUDAGraph()
        # Not torch.cuda.graph(): it empties the allocator's caches every time, and leaves its
        # stream in use when an error ends the recording.
        torch.cuda.synchronize(self._device)
        with torch.cuda.stream(self._stream):
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            try:
                run()
            except BaseException as error:
                _abandon(graph)
                if isinstance(error, RuntimeError):
                    raise GraphError(f"the step cannot be recorded: {error}") from error
                raise
            graph.capture_end()
        self._graphs.add(graph)
        return cast("Graph", graph)


def _abandon(graph: torch.cuda.CUDAGraph) -> None:
    """End a recording that failed, so that the stream takes work again."""
    with suppress(RuntimeError):  # it says what is known: the recording is invalid
        graph.capture_end()
