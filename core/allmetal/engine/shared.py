"""An engine that another process owns, which says by `up` and `down` where and whether it is."""

from __future__ import annotations

import asyncio

import zmq.asyncio

from allmetal.engine import ipc
from allmetal.engine.link import FrontEnd
from allmetal.errors import EngineDeadError


class SharedEngine:
    """A `Link`.  `name` is this front end's among all that ever join the engine."""

    def __init__(self, name: str) -> None:
        self.lost = False
        self.pid = 0
        self._name = name
        self._front: FrontEnd | None = None
        self._first: asyncio.Future[ipc.Ready] = asyncio.get_running_loop().create_future()
        self._context = zmq.asyncio.Context()
        self._socket: zmq.asyncio.Socket | None = None
        self._reading: asyncio.Task[None] | None = None

    async def open(self, front: FrontEnd) -> ipc.Ready:
        self._front = front
        return await asyncio.shield(self._first)

    def send(self, message: ipc.Message) -> None:
        if self._socket is not None:
            self._socket.send(ipc.encode(message))

    async def close(self) -> None:
        self._front = None
        self._hang_up()
        self._context.term()

    def up(self, ready: ipc.Ready, pid: int) -> None:
        """An engine is there."""
        self._hang_up()
        self.pid = pid
        self._socket = self._context.socket(zmq.DEALER)
        ipc.unlimited(self._socket, linger_ms=0)
        self._socket.setsockopt_string(zmq.IDENTITY, self._name)
        self._socket.connect(ready.address)
        self._reading = asyncio.create_task(self._read(self._socket))
        if not self._first.done():
            self._first.set_result(ready)
        elif self._front is not None:
            self._front.up(ready)

    def down(self, error: EngineDeadError, *, lost: bool) -> None:
        """It is gone; `lost`: for good."""
        self.lost = lost
        self._hang_up()
        if not self._first.done():
            if lost:
                self._first.set_exception(error)
        elif self._front is not None:
            self._front.down(error)

    def _hang_up(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None

    async def _read(self, socket: zmq.asyncio.Socket) -> None:
        while True:
            message = ipc.decode_from_engine(await socket.recv())
            if self._front is not None:
                self._front.take(message)
            # While messages wait, receiving one does not suspend: let the streams have their turn.
            await asyncio.sleep(0)
