"""An engine that this process started, and starts again as often as it may."""

from __future__ import annotations

import asyncio
import logging

from allmetal.config import EngineConfig, LogFormat
from allmetal.engine import ipc
from allmetal.engine.life import EngineLife
from allmetal.engine.link import FrontEnd, again, as_dead
from allmetal.engine.process import ENGINE
from allmetal.errors import AllmetalError, EngineDeadError

log = logging.getLogger(__name__)

# The first new start is at once; each one after a failure waits twice as long, up to the last.
_WAITS_S = (0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0)
# Who served this long did not die of what it was started with: counting begins anew.
_PROVEN_S = 60.0


class OwnedEngine:
    """A `Link`.  `restart`: how many new starts in a row; `shared`: other processes may join."""

    def __init__(
        self,
        config: EngineConfig,
        *,
        factory: str = ENGINE,
        restart: int = 0,
        shared: bool = False,
        log_format: LogFormat | None = None,
    ) -> None:
        self.lost = False
        self._config, self._factory, self._shared = config, factory, shared
        self._restart = restart
        self._log_format: LogFormat | None = log_format
        self._front: FrontEnd | None = None
        self._closing = False
        self._restarting: asyncio.Task[None] | None = None
        self._starts_left = restart
        self._up_since = 0.0
        self._life = self._new_life()

    @property
    def pid(self) -> int:
        return self._life.pid

    async def open(self, front: FrontEnd) -> ipc.Ready:
        self._front = front
        ready = await self._life.load()
        self._up_since = asyncio.get_running_loop().time()
        if self._life.error is not None:  # between its last word and now
            raise again(self._life.error)
        return ready

    def send(self, message: ipc.Message) -> None:
        self._life.send(message)

    async def close(self) -> None:
        self._closing = True
        if self._restarting is not None:
            self._restarting.cancel()
            await asyncio.gather(self._restarting, return_exceptions=True)
        await self._life.stop(EngineDeadError("the engine was closed"))

    def _new_life(self) -> EngineLife:
        return EngineLife(
            self._config,
            factory=self._factory,
            shared=self._shared,
            log_format=self._log_format,
            on_message=self._take,
            on_end=self._ended,
        )

    def _take(self, message: ipc.FromEngine) -> None:
        assert self._front is not None
        self._front.take(message)

    def _ended(self, error: AllmetalError) -> None:
        if self._closing or not self._up_since:  # who loads it is told by `open`
            return
        assert self._front is not None
        dead = as_dead(error)
        if not self._restart:
            self.lost = True
            self._front.down(dead)
            return
        self._front.down(_coming_back(dead))
        if self._restarting is None:
            self._restarting = asyncio.create_task(self._bring_back(dead))

    async def _bring_back(self, error: EngineDeadError) -> None:
        loop = asyncio.get_running_loop()
        if loop.time() - self._up_since >= _PROVEN_S:
            self._starts_left = self._restart
        while self._starts_left:
            attempt = self._restart - self._starts_left
            self._starts_left -= 1
            log.error("%s; starting it again (%d of %d)", error.message, attempt + 1, self._restart)
            await self._life.stop(error)
            await asyncio.sleep(_WAITS_S[min(attempt, len(_WAITS_S) - 1)])
            self._up_since = 0.0
            self._life = self._new_life()
            try:
                ready = await self._life.load()
            except AllmetalError as failed:
                error = as_dead(failed)
                continue
            self._up_since = loop.time()
            self._restarting = None
            assert self._front is not None
            self._front.up(ready)
            if self._life.error is not None:  # it did not live long
                self._ended(self._life.error)
            return
        self.lost = True
        assert self._front is not None
        self._front.down(error)


def _coming_back(error: EngineDeadError) -> EngineDeadError:
    return EngineDeadError(f"{error.message}; it is being started again", hint="try again soon")
