"""One server in one event loop: from a running engine to the last answer."""

from __future__ import annotations

import asyncio
import socket

from allmetal.config import ServerConfig
from allmetal.engine.async_engine import AsyncEngine
from allmetal.server.app import create_app
from allmetal.server.http import HttpServer
from allmetal.server.rpc import grpc_beside
from allmetal.server.state import ServerState


class Serving:
    """Serves until told to stop, or until the engine is gone for good."""

    def __init__(self, engine: AsyncEngine, config: ServerConfig) -> None:
        self._engine, self._config = engine, config
        app = create_app(engine, config)
        self._state: ServerState = app.state.server
        self._server = HttpServer(app, config)
        self._closing: asyncio.Task[None] | None = None

    async def run(self, listener: socket.socket) -> None:
        """Returns when the last open request has its answer."""
        watch = asyncio.create_task(self._stop_without_engine())
        try:
            async with grpc_beside(self._state, self._config):
                await self._server.serve(sockets=[listener])
        finally:
            watch.cancel()
            await asyncio.to_thread(self._state.close)

    def drain(self) -> None:
        """Take no new request and give open ones their time; then end them with an error."""
        self._state.phase.draining = True
        loop = asyncio.get_running_loop()
        loop.call_later(self._config.drain_delay, self._stop_listening)
        loop.call_later(self._config.drain_delay + self._config.drain_timeout, self._close_engine)

    def stop(self) -> None:
        """Wait no longer for anyone."""
        self._stop_listening()
        self._close_engine()

    def _stop_listening(self) -> None:
        self._server.should_exit = True

    def _close_engine(self) -> None:
        """Open requests are answered with an error, which ends the server's wait for them."""
        if self._closing is None:
            self._closing = asyncio.create_task(self._engine.close())

    async def _stop_without_engine(self) -> None:
        await self._engine.gone_for_good.wait()
        self._state.phase.draining = True
        self._stop_listening()
