"""Several processes that speak HTTP before one engine, and the one that owns them all.

They share one listening socket, so that a connection which waits there is taken by any of them: a
process that dies loses only the connections it had.  A port of each's own, with the system
spreading connections over them, would lose those that wait for the dead one.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import shutil
import socket
import sys
import tempfile

from allmetal.config import EngineConfig, ServerConfig, environment_with
from allmetal.engine import ipc
from allmetal.engine.owned import OwnedEngine
from allmetal.errors import EngineDeadError
from allmetal.server import control
from allmetal.server.worker import GAVE_UP

log = logging.getLogger(__name__)

_BOOT = "import sys; sys.path[:] = {path!r}; from allmetal.server.worker import main; main()"
# A worker that ends sooner than this did not die of a request.
_PROVEN_S = 10.0
_MOST_EARLY_ENDS = 5
_WAIT_S = 0.5


class Supervisor:
    """A `FrontEnd` that asks the engine for nothing itself."""

    def __init__(
        self, engine_config: EngineConfig, config: ServerConfig, listener: socket.socket
    ) -> None:
        self._engine_config, self._config, self._listener = engine_config, config, listener
        self._engine = OwnedEngine(
            engine_config, restart=config.restart, shared=True, log_format=config.log_format
        )
        self._ready: ipc.Ready | None = None
        self._workers: dict[str, asyncio.subprocess.Process] = {}
        self._names = (f"api-{number}" for number in itertools.count())
        self._stopping = False
        self._early_ends = 0
        self._error: Exception | None = None
        # Where the workers' metrics are added up; those of dead ones stay.
        self._metrics = tempfile.mkdtemp(prefix="allmetal-metrics-")

    async def load(self) -> ipc.Ready:
        self._ready = await self._engine.open(self)
        return self._ready

    async def run(self) -> Exception | None:
        """Returns when the last worker has ended; what went wrong, if anything."""
        await asyncio.gather(*(self._keep_one() for _ in range(self._config.api_processes)))
        return self._error

    async def close(self) -> None:
        for process in self._workers.values():
            process.kill()
        await self._engine.close()
        shutil.rmtree(self._metrics, ignore_errors=True)

    def drain(self) -> None:
        self._stopping = True
        self._tell(control.Drain())

    def stop(self) -> None:
        self._stopping = True
        self._tell(control.Stop())

    # ---- the engine ------------------------------------------------------------------------

    def take(self, message: ipc.FromEngine) -> None:
        """Nothing is asked from here."""

    def down(self, error: EngineDeadError) -> None:
        self._ready = None
        if self._engine.lost:
            self._error, self._stopping = error, True
        self._tell(control.Down(ipc.failure(error), self._engine.lost))

    def up(self, ready: ipc.Ready) -> None:
        self._ready = ready
        self._tell(control.Up(ready, self._engine.pid))

    # ---- the workers -----------------------------------------------------------------------

    async def _keep_one(self) -> None:
        """A worker, and another in its place when it dies."""
        loop = asyncio.get_running_loop()
        while not self._stopping:
            name, begin = next(self._names), loop.time()
            process = await self._start(name)
            code = await process.wait()
            del self._workers[name]
            self._engine.send(ipc.Leave(name))
            if self._stopping or code == GAVE_UP:
                return
            log.error("%s ended with code %d; starting another", name, code)
            early = loop.time() - begin < _PROVEN_S
            self._early_ends = self._early_ends + 1 if early else 0
            if self._early_ends > _MOST_EARLY_ENDS:
                self._error = EngineDeadError("the processes that speak HTTP end at once")
                self.drain()
            await asyncio.sleep(_WAIT_S if early else 0)

    async def _start(self, name: str) -> asyncio.subprocess.Process:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            _BOOT.format(path=sys.path),
            stdin=asyncio.subprocess.PIPE,
            pass_fds=(self._listener.fileno(),),
            env=environment_with(PROMETHEUS_MULTIPROC_DIR=self._metrics),
        )
        self._workers[name] = process
        begin = control.Begin(name, self._engine_config, self._config, self._listener.fileno())
        _write(process, begin)
        if self._ready is not None:
            _write(process, control.Up(self._ready, self._engine.pid))
        if self._stopping:
            _write(process, control.Drain())
        return process

    def _tell(self, order: control.Order) -> None:
        for process in self._workers.values():
            _write(process, order)


def _write(process: asyncio.subprocess.Process, order: control.Order) -> None:
    # Small, so it goes into the pipe at once; to one that has ended it goes nowhere.
    assert process.stdin is not None
    process.stdin.write(control.frame(order))
