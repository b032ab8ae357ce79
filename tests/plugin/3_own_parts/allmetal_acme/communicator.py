"""Collectives over sockets: rank 0 is the centre of a star and does the sums.

One message a rank and one back, so every rank gets the same bits.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Client, Connection, Listener

import torch

Combine = Callable[[list[torch.Tensor]], torch.Tensor]
PATIENCE = 60.0
"""Seconds that ranks wait for the first one."""


def star(*, rank: int, size: int, address: str) -> Star:
    """`address` is host:port, where rank 0 listens."""
    host, _, port = address.rpartition(":")
    if rank:
        return Star(rank, size, [_connect(host, int(port), rank)])
    with Listener((host, int(port)), authkey=address.encode()) as listener:
        arrived = [listener.accept() for _ in range(size - 1)]
    return Star(0, size, sorted(arrived, key=lambda connection: int(connection.recv())))


def _connect(host: str, port: int, rank: int) -> Connection:
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            connection = Client((host, port), authkey=f"{host}:{port}".encode())
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
        else:
            connection.send(rank)
            return connection


@dataclass(frozen=True, slots=True)
class Star:
    """`links`: of rank 0 to every other in their order, of another to rank 0."""

    rank: int
    size: int
    links: list[Connection]

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        return self._meet(x, lambda parts: torch.stack(parts).sum(0))

    def all_gather(self, x: torch.Tensor, dim: int) -> torch.Tensor:
        return self._meet(x, lambda parts: torch.cat(parts, dim))

    def broadcast(self, x: torch.Tensor, root: int) -> torch.Tensor:
        return self._meet(x, lambda parts: parts[root])

    def _meet(self, x: torch.Tensor, combine: Combine) -> torch.Tensor:
        if self.rank:
            self.links[0].send(x.cpu().numpy())
            return torch.from_numpy(self.links[0].recv()).to(x.device)
        combined = combine([x.cpu(), *(torch.from_numpy(link.recv()) for link in self.links)])
        for link in self.links:
            link.send(combined.numpy())
        return combined.to(x.device)

    def close(self) -> None:
        for link in self.links:
            link.close()
