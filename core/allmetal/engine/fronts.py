"""The front ends of an engine: the process that started it, and those that joined."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import zmq

from allmetal.engine import ipc
from allmetal.request import Request, TokenDelta

PARENT = b""


class Fronts:
    """Messages of all front ends in, each one's own out."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], address: str) -> None:
        self._context = context
        self._parent = context.socket(zmq.DEALER)
        ipc.unlimited(self._parent, linger_ms=1000)
        self._parent.connect(address)
        self._joined: zmq.Socket[bytes] | None = None
        self._poller = zmq.Poller()
        # Which front end asked for a sequence.
        self._owners: dict[str, bytes] = {}

    def share(self) -> str:
        """Let others join; returns where."""
        self._joined = self._context.socket(zmq.ROUTER)
        ipc.unlimited(self._joined, linger_ms=0)
        for socket in (self._parent, self._joined):
            self._poller.register(socket, zmq.POLLIN)
        meeting = ipc.Rendezvous.make()
        meeting.bind(self._joined)
        return meeting.address

    def close(self) -> None:
        self._parent.close()
        if self._joined is not None:
            self._joined.close()

    # ---- in --------------------------------------------------------------------------------

    def first(self) -> ipc.ToEngine:
        """The first message of the parent's."""
        return ipc.decode_to_engine(self._parent.recv())

    def received(self, *, wait: bool) -> Iterator[tuple[bytes, ipc.ToEngine]]:
        """Every message that has come, with who sent it; with `wait`, at least one."""
        if self._joined is None:
            if wait:
                yield PARENT, ipc.decode_to_engine(self._parent.recv())
        elif not self._poller.poll(None if wait else 0):
            return
        for frames in _waiting(self._parent):
            yield PARENT, ipc.decode_to_engine(frames[0])
        if self._joined is not None:
            for front, body in _waiting(self._joined):
                yield front, ipc.decode_to_engine(body)

    def own(self, front: bytes, requests: Iterable[Request]) -> None:
        """What comes of these is for `front`."""
        if self._joined is not None:
            self._owners.update((request.request_id, front) for request in requests)

    def leave(self, name: str) -> list[str]:
        """Forget a front end; returns the sequences it had asked for."""
        front = name.encode()
        left = [each for each, owner in self._owners.items() if owner == front]
        for each in left:
            del self._owners[each]
        return left

    # ---- out -------------------------------------------------------------------------------

    def send(self, front: bytes, message: ipc.Message) -> None:
        if front == PARENT:
            self._parent.send(ipc.encode(message))
        elif self._joined is not None:  # what is for one that is gone is dropped
            self._joined.send_multipart((front, ipc.encode(message)))

    def spread(self, deltas: list[TokenDelta]) -> None:
        """What a step brought, to those who asked for it."""
        if self._joined is None:
            self.send(PARENT, ipc.Step(deltas))
            return
        shares: dict[bytes, list[TokenDelta]] = {}
        for delta in deltas:
            owner = self._owners.get(delta.request_id)
            if owner is None:  # its front end left
                continue
            shares.setdefault(owner, []).append(delta)
            if delta.finish_reason is not None:
                del self._owners[delta.request_id]
        for front, share in shares.items():
            self.send(front, ipc.Step(share))


def _waiting(socket: zmq.Socket[bytes]) -> Iterator[list[bytes]]:
    while True:
        try:
            yield socket.recv_multipart(zmq.NOBLOCK)
        except zmq.Again:
            return
