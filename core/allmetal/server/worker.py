"""One of several processes that speak HTTP before one engine."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import sys
import threading

from allmetal import logs
from allmetal.config import metrics_dir
from allmetal.engine import ipc
from allmetal.engine.async_engine import AsyncEngine
from allmetal.engine.link import as_dead
from allmetal.engine.shared import SharedEngine
from allmetal.errors import AllmetalError
from allmetal.server import context, control
from allmetal.server.serving import Serving

# The engine is gone for good: the supervisor knows, and starts no other worker.
GAVE_UP = 4


def main() -> None:
    """The whole life of the process.  It ends with its supervisor, however that went."""
    # The supervisor decides when to stop: signals to the whole group must not cut it short.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
    begin = control.read(sys.stdin.buffer)
    if not isinstance(begin, control.Begin):
        os._exit(3)
    end_logs = logs.configure(begin.server.log_format, name_of_request=context.request_id.get)
    code = asyncio.run(_Worker(begin).run())
    end_logs()
    sys.stdout.flush()
    os._exit(code)  # the thread that listens is not to be waited for


class _Worker:
    def __init__(self, begin: control.Begin) -> None:
        self._begin = begin
        self._serving: Serving | None = None
        self._task: asyncio.Task[int] | None = None

    async def run(self) -> int:
        self._task = asyncio.current_task()
        self._link = SharedEngine(self._begin.name)
        loop = asyncio.get_running_loop()
        threading.Thread(target=self._listen, args=(loop,), daemon=True).start()
        try:
            engine = await AsyncEngine.join(self._begin.engine, self._link)
        except (asyncio.CancelledError, AllmetalError):
            return GAVE_UP
        try:
            with socket.socket(fileno=self._begin.listener) as listener:
                self._serving = Serving(engine, self._begin.server)
                await self._serving.run(listener)
            return GAVE_UP if engine.gone_for_good.is_set() else 0
        finally:
            await engine.close()

    def _listen(self, loop: asyncio.AbstractEventLoop) -> None:
        """In a thread, so that it hears of the end whatever the loop does."""
        while (order := control.read(sys.stdin.buffer)) is not None:
            loop.call_soon_threadsafe(self._obey, order)
        if (folder := metrics_dir()) is not None:  # nobody is left to do it
            shutil.rmtree(folder, ignore_errors=True)
        os._exit(3)

    def _obey(self, order: control.Order) -> None:
        match order:
            case control.Up(ready, pid):
                self._link.up(ready, pid)
            case control.Down(failure, lost):
                self._link.down(as_dead(ipc.as_error(failure)), lost=lost)
            case control.Drain() | control.Stop():
                self._end(now=isinstance(order, control.Stop))
            case control.Begin():
                raise AssertionError("it has begun")

    def _end(self, *, now: bool) -> None:
        if self._serving is not None:
            self._serving.stop() if now else self._serving.drain()
        elif self._task is not None:  # loading
            self._task.cancel()
