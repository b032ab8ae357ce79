"""One life of an engine's process: started, loaded, serving, gone."""

from __future__ import annotations

import asyncio
import contextlib
import traceback
from collections.abc import Callable
from functools import partial

import zmq.asyncio

from allmetal.config import EngineConfig, LogFormat
from allmetal.engine import ipc
from allmetal.engine.link import again
from allmetal.engine.process import EngineProcess
from allmetal.errors import AllmetalError, EngineDeadError

# What a process said before it ended may still be on its way when its end is noticed.
_LAST_WORDS_S = 0.1
_STOP_GRACE_S = 5.0


class EngineLife:
    """A process with the socket to it.  `on_end` is called once, with what ended it."""

    def __init__(
        self,
        config: EngineConfig,
        *,
        factory: str,
        shared: bool,
        log_format: LogFormat | None,
        on_message: Callable[[ipc.FromEngine], None],
        on_end: Callable[[AllmetalError], None],
    ) -> None:
        loop = asyncio.get_running_loop()
        self.error: AllmetalError | None = None
        """What ended it; None while it lives."""
        self._start = ipc.Start(config, shared, log_format)
        self._on_message, self._on_end = on_message, on_end
        self._hello: asyncio.Future[ipc.Hello] = loop.create_future()
        self._ready: asyncio.Future[ipc.Ready] = loop.create_future()
        self._exited = asyncio.Event()
        self._context = zmq.asyncio.Context()
        self._socket = self._context.socket(zmq.DEALER)
        ipc.unlimited(self._socket, linger_ms=0)
        self._rendezvous = ipc.Rendezvous.make()
        self._rendezvous.bind(self._socket)
        self._process = EngineProcess(
            self._rendezvous.address,
            factory=factory,
            on_exit=partial(_call_in_loop, loop, self._exited.set),
        )
        self._tasks = [asyncio.create_task(self._read()), asyncio.create_task(self._watch())]
        for task in self._tasks:
            task.add_done_callback(self._task_ended)

    @property
    def pid(self) -> int:
        return self._process.pid

    async def load(self) -> ipc.Ready:
        """Raises what loading raised there."""
        await asyncio.shield(self._hello)
        self._rendezvous.remove()
        self.send(self._start)
        return await asyncio.shield(self._ready)

    def send(self, message: ipc.Message) -> None:
        # There is no limit on what may be queued, so this neither waits nor fails.
        if self.error is None:
            self._socket.send(ipc.encode(message))

    async def stop(self, reason: EngineDeadError) -> None:
        """End the process, free everything."""
        alive, loaded = self.error is None, self._ready.done()
        self.send(ipc.Close())
        self._ended(reason)
        # While loading it does not listen, and there is nothing to save.
        grace_s = 0.0 if alive and not loaded else _STOP_GRACE_S
        await asyncio.to_thread(self._process.stop, grace_s=grace_s)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._socket.close()
        self._context.term()
        self._rendezvous.remove()
        if self._ready.done() and self._ready.exception() is None:
            ipc.remove_folder(self._ready.result().address)

    def _ended(self, error: AllmetalError) -> None:
        if self.error is not None:
            return
        self.error = error
        for waiting in (self._hello, self._ready):
            if not waiting.done():
                waiting.set_exception(again(error))
                waiting.exception()  # somebody may have stopped waiting
        self._on_end(error)

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            traceback.print_exception(error)
            self._ended(ipc.as_error(ipc.failure(error)))

    async def _read(self) -> None:
        while True:
            message = ipc.decode_from_engine(await self._socket.recv())
            match message:
                case ipc.Hello():
                    self._hello.set_result(message)
                case ipc.Ready():
                    self._ready.set_result(message)
                case ipc.Failure():
                    self._ended(ipc.as_error(message))
                case _:
                    self._on_message(message)
            # While messages wait, receiving one does not suspend: let the streams have their turn.
            await asyncio.sleep(0)

    async def _watch(self) -> None:
        await self._exited.wait()
        await asyncio.sleep(_LAST_WORDS_S)
        self._ended(EngineDeadError(f"the engine process is gone: {self._process.exit_reason()}"))


def _call_in_loop(loop: asyncio.AbstractEventLoop, call: Callable[[], object]) -> None:
    with contextlib.suppress(RuntimeError):  # the loop is closed: nobody is left to tell
        loop.call_soon_threadsafe(call)
