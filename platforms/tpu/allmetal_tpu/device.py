"""A TPU as TorchTPU drives it: the device type `tpu` of torch."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from importlib.metadata import PackageNotFoundError, version
from typing import Any, cast

import torch

from allmetal.errors import PlatformError
from allmetal.platform.contract import (
    Advice,
    DeviceInfo,
    Event,
    Memory,
    ModelFacts,
    Stream,
)
from allmetal_tpu.advice import advise
from allmetal_tpu.generations import generation
from allmetal_tpu.graphs import CompiledSteps

PACKAGES = ("torch-tpu", "libtpu", "jax")


def open_device(info: DeviceInfo) -> TpuDevice:
    """Raises PlatformError where torch cannot drive the device, saying what to mend."""
    try:
        # Without it the runtime ends the process, with the first tensor.
        importlib.import_module("libtpu")
        loader: Any = importlib.import_module("torch_tpu._loader")
        loader.load()
    except Exception as error:  # whatever an extension makes of a torch or a machine it dislikes
        raise PlatformError(
            f"{info.name} cannot be used: {_first_line(error)}",
            hint="pip install torch-tpu libtpu, of versions made for this torch"
            f" ({torch.__version__})",
        ) from error
    if not loader._LOADED:
        raise PlatformError(
            f"{info.name} cannot be used: TorchTPU sees no device",
            hint="it counts those whose /dev/vfio group this process may open; another process"
            " may hold the chip",
        )
    count = torch.accelerator.device_count()
    # The numbers of a whole precision must be asked for: the default rounds to bfloat16 first.
    torch.set_float32_matmul_precision("highest")
    return TpuDevice(info, min(info.index, count - 1))


def _first_line(error: BaseException) -> str:
    lines = str(error).splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else 'no message'}"


class TpuDevice:
    asynchronous = True
    communicator = None

    def __init__(self, info: DeviceInfo, ordinal: int) -> None:
        self.info = info
        self.torch_device = f"tpu:{ordinal}"
        self.streams = Streams()
        self.graphs = CompiledSteps()
        self._pins = True

    def memory(self) -> Memory:
        """As the runtime's allocator tells; where it is silent, the generation's memory."""
        free, total = torch.accelerator.get_memory_info(self.torch_device)
        if total:
            return Memory(free=free, total=total)
        known = generation(self.info.arch)
        size = self.info.total_memory or (known.device_memory if known is not None else 0)
        return Memory(free=size, total=size)

    def synchronize(self) -> None:
        torch.accelerator.synchronize(self.torch_device)

    def pin(self, x: torch.Tensor) -> torch.Tensor:
        """Not every runtime has memory of the host to lend."""
        if self._pins:
            try:
                return x.pin_memory()
            except RuntimeError:
                self._pins = False
        return x

    def versions(self) -> Mapping[str, str]:
        found: dict[str, str] = {"torch": str(torch.__version__)}
        for package in PACKAGES:
            try:
                found[package] = version(package)
            except PackageNotFoundError:
                continue
        return found

    def advice(self, model: ModelFacts) -> Advice:
        return advise(self.info, model)

    def close(self) -> None:
        """The runtime holds the device as long as the process lives."""


class Streams:
    def stream(self) -> Stream:
        return OneStream()

    def event(self) -> Event:
        return cast("Event", torch.tpu.Event())  # type: ignore[attr-defined]


class OneStream:
    """The runtime keeps a queue a device, and its streams do nothing yet."""

    def use(self) -> AbstractContextManager[None]:
        return nullcontext()

    def wait(self, event: Event) -> None:
        """Work is done in the order in which it was given."""
