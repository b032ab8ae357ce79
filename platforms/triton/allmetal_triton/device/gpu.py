"""A GPU as torch drives it, whichever module of torch that is.

Opening creates no context: that comes with the first tensor, in the process that makes it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from importlib import import_module
from typing import Any, cast

import torch

from allmetal.errors import PlatformError
from allmetal.platform.contract import (
    Advice,
    CommunicatorFactory,
    DeviceInfo,
    Event,
    Memory,
    ModelFacts,
    Stream,
)
from allmetal_triton.device.graphs import Graphs

Advise = Callable[[DeviceInfo, ModelFacts], Advice]


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchModule:
    """Where torch has a kind of device: `torch.cuda` (ROCm's too) or `torch.xpu`.

    `graph`: makes an empty graph, None where it records none.  `capture`: what `capture_begin`
    is told.
    """

    type: str
    graph: Callable[[], Any] | None = None
    capture: Mapping[str, Any] | None = None

    @property
    def api(self) -> Any:
        return getattr(torch, self.type)


def ordinal_of(info: DeviceInfo, module: TorchModule, *, hidden_by: str) -> int:
    """torch's number of the device: it counts in an order of its own, and only those it may see.

    Raises PlatformError for one it may not see, which `hidden_by` explains.
    """
    address = info.traits.get("pci")
    count: int = module.api.device_count()
    if address is None:
        return min(info.index, count - 1)
    for ordinal in range(count):
        facts: Any = module.api.get_device_properties(ordinal)
        where = f"{facts.pci_domain_id:04x}:{facts.pci_bus_id:02x}:{facts.pci_device_id:02x}."
        if address.startswith(where):
            return ordinal
    raise PlatformError(f"{info.name} at {address} is hidden from this process", hint=hidden_by)


class TorchGPU:
    asynchronous = True

    def __init__(
        self,
        info: DeviceInfo,
        module: TorchModule,
        ordinal: int,
        *,
        advise: Advise,
        versions: Mapping[str, str],
        communicator: CommunicatorFactory | None = None,
    ) -> None:
        self.info = info
        self.torch_device = f"{module.type}:{ordinal}"
        self.streams = Streams(module, self.torch_device)
        self.graphs = Graphs(module, self.torch_device) if module.graph is not None else None
        self.communicator = communicator
        self._api, self._advise, self._versions = module.api, advise, versions
        if ordinal:
            self._api.set_device(ordinal)  # where launches of this thread go

    def memory(self) -> Memory:
        """What the allocator holds and does not use counts as free."""
        free, total = self._api.mem_get_info(self.torch_device)
        kept = self._api.memory_reserved(self.torch_device)
        used = self._api.memory_allocated(self.torch_device)
        return Memory(free=free + kept - used, total=total)

    def synchronize(self) -> None:
        self._api.synchronize(self.torch_device)

    def pin(self, x: torch.Tensor) -> torch.Tensor:
        return x.pin_memory()

    def versions(self) -> Mapping[str, str]:
        found = {"torch": torch.__version__}
        with suppress(ImportError):  # not every device that torch drives is one of Triton's
            found["triton"] = import_module("triton").__version__
        return {**found, **self._versions}

    def advice(self, model: ModelFacts) -> Advice:
        return self._advise(self.info, model)

    def close(self) -> None:
        """Gives back what the allocator keeps; torch holds the context as long as the process."""
        if self._api.is_initialized():
            self._api.empty_cache()


class Streams:
    def __init__(self, module: TorchModule, torch_device: str) -> None:
        self._api, self._device = module.api, torch_device

    def stream(self) -> Stream:
        return OneStream(self._api, self._api.Stream(self._device))

    def event(self) -> Event:
        return cast("Event", self._api.Event())


class OneStream:
    def __init__(self, api: Any, stream: Any) -> None:
        self._api, self._stream = api, stream

    def use(self) -> AbstractContextManager[None]:
        return cast("AbstractContextManager[None]", self._api.stream(self._stream))

    def wait(self, event: Event) -> None:
        self._stream.wait_event(event)
