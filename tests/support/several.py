"""Pretend devices that have each other: the host, several times, with gloo between the ranks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist

from allmetal.platform.contract import (
    DEFAULT_OPTIONS,
    CapabilityTable,
    Communicator,
    Device,
    DeviceInfo,
    Native,
    OpenOptions,
    Probe,
)
from allmetal.platform.null import NullDevice
from allmetal.testing.reference_platform import ReferencePlatform


class Gloo:
    """Collectives of torch's own."""

    def __init__(self, *, rank: int, size: int, address: str) -> None:
        self.rank, self.size = rank, size
        dist.init_process_group("gloo", init_method=f"tcp://{address}", rank=rank, world_size=size)

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        dist.all_reduce(x)
        return x

    def all_gather(self, x: torch.Tensor, dim: int) -> torch.Tensor:
        parts = [torch.empty_like(x) for _ in range(self.size)]
        dist.all_gather(parts, x.contiguous())
        return torch.cat(parts, dim)

    def broadcast(self, x: torch.Tensor, root: int) -> torch.Tensor:
        dist.broadcast(x, root)
        return x

    def close(self) -> None:
        dist.destroy_process_group()


class Averages(Gloo):
    """Forgets that sums are wanted."""

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        return super().all_reduce(x) / self.size


class Transposes(Gloo):
    """Puts the ranks side by side along the first axis whatever is asked."""

    def all_gather(self, x: torch.Tensor, dim: int) -> torch.Tensor:
        return super().all_gather(x, 0)


class OwnRoot(Gloo):
    """Every rank takes itself for the root of the last."""

    def broadcast(self, x: torch.Tensor, root: int) -> torch.Tensor:
        mine = x.clone()
        return mine if super().broadcast(x, root) is None or root == self.size - 1 else x


class Drifts(Gloo):
    """The last rank's sums end in other bits."""

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        x = super().all_reduce(x)
        return x * (1 + 2**-8) if self.rank == self.size - 1 else x


class Dies(Gloo):
    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("the link is down")


@dataclass(frozen=True)
class Linked(NullDevice):
    communicator: Any = Gloo


class Several(ReferencePlatform):
    def __init__(self, num_devices: int = 2, link: type[Communicator] = Gloo) -> None:
        self._num_devices, self._link = num_devices, link

    def probe(self) -> Probe:
        (one,) = super().probe()  # type: ignore[misc]
        return [replace(one, index=index) for index in range(self._num_devices)]

    def capabilities(self, device: DeviceInfo) -> CapabilityTable:
        return {f"collective.{op}": Native("gloo") for op in ("all_reduce", "all_gather")}

    def open(self, device: DeviceInfo, options: OpenOptions = DEFAULT_OPTIONS) -> Device:
        return Linked(device, communicator=self._link)
