"""Collectives of torch.distributed: "nccl" (also RCCL), "xccl" (oneCCL), or the host's "gloo"."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import TCPStore

from allmetal.errors import PlatformError
from allmetal.platform.contract import Communicator

_PATIENCE = timedelta(minutes=5)
"""For ranks that load their weights at different speeds."""


@dataclass(frozen=True, slots=True)
class TorchCollectives:
    """A CommunicatorFactory over a back end of torch's, for tensors on `torch_device`."""

    backend: str
    torch_device: str

    def __call__(self, *, rank: int, size: int, address: str) -> Communicator:
        """Meets the others at `address`, "host:port"; one group a process.

        Raises PlatformError where torch was built without the back end, or they do not come.
        """
        if not dist.is_backend_available(self.backend):
            raise PlatformError(
                f"ranks cannot meet: torch {torch.__version__} was built without {self.backend}",
                hint="run on one device, or install a build of torch for this hardware",
            )
        host, _, port = address.rpartition(":")
        try:
            store = TCPStore(host, int(port), size, is_master=rank == 0, timeout=_PATIENCE)
            dist.init_process_group(self.backend, store=store, rank=rank, world_size=size)
        except (RuntimeError, ValueError) as error:  # torch's words for who did not come
            raise PlatformError(f"rank {rank} of {size} cannot meet the others: {error}") from error
        return _Group(rank, size)


@dataclass(frozen=True, slots=True)
class _Group:
    rank: int
    size: int

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        x = x.contiguous()
        dist.all_reduce(x)
        return x

    def all_gather(self, x: torch.Tensor, dim: int) -> torch.Tensor:
        parts = [x.new_empty(x.shape) for _ in range(self.size)]
        dist.all_gather(parts, x.contiguous())
        return torch.cat(parts, dim)

    def broadcast(self, x: torch.Tensor, root: int) -> torch.Tensor:
        x = x.contiguous()
        dist.broadcast(x, root)
        return x

    def close(self) -> None:
        if dist.is_initialized():
            dist.destroy_process_group()
