"""Bind, load, serve, and end as told."""

from __future__ import annotations

import asyncio
import contextlib
import math
import signal
import socket
import sys
from collections.abc import Iterator

import uvicorn

from allmetal.config import EngineConfig, ServerConfig
from allmetal.engine.async_engine import AsyncEngine
from allmetal.errors import ConfigError
from allmetal.platform.render import render
from allmetal.server.app import create_app
from allmetal.server.middleware.auth import api_keys
from allmetal.server.state import Phase
from allmetal.server.tls import tls_options

_BACKLOG = 2048
# For clients that are slow to take their last words.
_LAST_ANSWERS_S = 5.0


def serve(engine_config: EngineConfig, config: ServerConfig) -> int:
    """Serve until SIGTERM (exit code 0) or SIGINT (130).

    On the first signal no new request is taken and open ones get `drain_timeout` to end; after
    that, or on a second signal, they end with an error.  Raises ConfigError if the address cannot
    be had, or keys or certificates cannot be used, before loading.
    """
    api_keys(config)  # what is wrong with them is said before loading, too
    tls_options(config)
    with _bound(config) as listener:
        return asyncio.run(_serve(engine_config, config, listener))


def _bound(config: ServerConfig) -> socket.socket:
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((config.host, config.port))
    except OSError as error:
        listener.close()
        raise ConfigError(
            f"cannot listen on {config.host} port {config.port}: {error.strerror}",
            hint="--port 0 takes a free one",
        ) from None
    return listener


async def _serve(engine_config: EngineConfig, config: ServerConfig, listener: socket.socket) -> int:
    signals = _Signals(config)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, signals.take, number)
    engine: AsyncEngine | None = None
    try:
        engine = await AsyncEngine.start(engine_config)
        app = create_app(engine, config)
        server = _Server(
            uvicorn.Config(
                app,
                lifespan="off",
                log_level="warning",
                access_log=False,
                timeout_graceful_shutdown=math.ceil(config.drain_timeout + _LAST_ANSWERS_S),
                **tls_options(config),
            )
        )
        signals.serving(engine, server, app.state.server.phase)
        _announce(engine, config, listener)
        await server.serve(sockets=[listener])
    except asyncio.CancelledError:
        if signals.taken is None:
            raise
    finally:
        if engine is not None:
            await engine.close()
    return 130 if signals.taken == signal.SIGINT else 0


def _announce(engine: AsyncEngine, config: ServerConfig, listener: socket.socket) -> None:
    listener.listen(_BACKLOG)
    host = f"[{config.host}]" if ":" in config.host else config.host
    ready = engine.ready
    print(
        f"{render(engine.plan)}\n\n"
        f"cache: {ready.num_blocks} blocks of {ready.block_size} tokens; "
        f"longest sequence: {ready.max_model_len}\n"
        f"serving on {'https' if config.tls_cert else 'http'}://{host}:{listener.getsockname()[1]}/v1",
        file=sys.stderr,
        flush=True,
    )


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are ours, from before the model is loaded until it is gone."""
        yield


class _Signals:
    """Ends what is going on: loading, serving, or the wait for open requests."""

    def __init__(self, config: ServerConfig) -> None:
        self.taken: int | None = None
        self._config = config
        self._loading = asyncio.current_task()
        self._engine: AsyncEngine | None = None
        self._server: uvicorn.Server | None = None
        self._phase: Phase | None = None
        self._closing: asyncio.Task[None] | None = None

    def serving(self, engine: AsyncEngine, server: uvicorn.Server, phase: Phase) -> None:
        """From now on there is something to drain."""
        self._engine, self._server, self._phase = engine, server, phase
        self._loading = None

    def take(self, number: int) -> None:
        if self.taken is not None:
            self._stop_listening()
            self._close_engine()
            return
        self.taken = number
        if self._loading is not None:
            self._loading.cancel()
        if self._phase is not None:
            self._phase.draining = True
            delay = self._config.drain_delay
            loop = asyncio.get_running_loop()
            loop.call_later(delay, self._stop_listening)
            loop.call_later(delay + self._config.drain_timeout, self._close_engine)

    def _stop_listening(self) -> None:
        if self._server is not None:
            self._server.should_exit = True

    def _close_engine(self) -> None:
        """Open requests are answered with an error, which ends the server's wait for them."""
        if self._engine is not None and self._closing is None:
            self._closing = asyncio.create_task(self._engine.close())
