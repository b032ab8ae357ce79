"""Bind, load, serve, and end as told."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket

from allmetal import logs
from allmetal.config import EngineConfig, ServerConfig
from allmetal.engine import ipc
from allmetal.engine.async_engine import AsyncEngine
from allmetal.platform.render import render
from allmetal.server import context
from allmetal.server.http import bound, listen, more_files, url_of
from allmetal.server.middleware.auth import api_keys
from allmetal.server.rpc import check_grpc
from allmetal.server.serving import Serving
from allmetal.server.supervisor import Supervisor
from allmetal.server.tls import tls_options
from allmetal.server.traces import check_traces

log = logging.getLogger(__name__)
_STDERR = 2


def serve(engine_config: EngineConfig, config: ServerConfig) -> int:
    """Serve until SIGTERM (exit code 0), SIGINT (130), or the engine is gone for good (1).

    On the first signal no new request is taken and open ones get `drain_timeout` to end; after
    that, or on a second signal, they end with an error.  Raises ConfigError if the address cannot
    be had, or keys or certificates cannot be used, before loading.
    """
    api_keys(config)
    tls_options(config)
    check_grpc(config)
    check_traces(config.otlp_endpoint)
    more_files()
    with bound(config) as listener:
        end_logs = logs.configure(config.log_format, name_of_request=context.request_id.get)
        try:
            return asyncio.run(_serve(engine_config, config, listener))
        finally:
            end_logs()


async def _serve(engine_config: EngineConfig, config: ServerConfig, listener: socket.socket) -> int:
    signals = _Signals()
    run = _alone if config.api_processes == 1 else _supervised
    try:
        error = await run(engine_config, config, listener, signals)
    except asyncio.CancelledError:
        if signals.taken is None:
            raise
        error = None
    if error is not None and signals.taken is None:
        _tell(config, f"error: {error}")
        return 1
    return 130 if signals.taken == signal.SIGINT else 0


async def _alone(
    engine_config: EngineConfig,
    config: ServerConfig,
    listener: socket.socket,
    signals: _Signals,
) -> Exception | None:
    """One process speaks HTTP and owns the engine."""
    engine = await AsyncEngine.start(
        engine_config, restart=config.restart, log_format=config.log_format
    )
    try:
        serving = Serving(engine, config)
        signals.loaded(serving)
        listen(listener)
        _announce(engine.ready, config, listener)
        await serving.run(listener)
        return engine.error if engine.gone_for_good.is_set() else None
    finally:
        await engine.close()


async def _supervised(
    engine_config: EngineConfig,
    config: ServerConfig,
    listener: socket.socket,
    signals: _Signals,
) -> Exception | None:
    """This process owns the engine and those that speak HTTP."""
    supervisor = Supervisor(engine_config, config, listener)
    try:
        ready = await supervisor.load()
        signals.loaded(supervisor)
        listen(listener)
        _announce(ready, config, listener)
        return await supervisor.run()
    finally:
        await supervisor.close()


def _announce(ready: ipc.Ready, config: ServerConfig, listener: socket.socket) -> None:
    text = (
        f"{render(ready.plan)}\n\n"
        f"cache: {ready.num_blocks} blocks of {ready.block_size} tokens; "
        f"longest sequence: {ready.max_model_len}\n"
        f"serving on {url_of(listener, config)}/v1"
    )
    fields = {
        "url": f"{url_of(listener, config)}/v1",
        "platform": ready.plan.platform,
        "num_blocks": ready.num_blocks,
        "max_model_len": ready.max_model_len,
    }
    _tell(config, text, "serving", fields)


def _tell(config: ServerConfig, text: str, message: str = "", fields: object = None) -> None:
    """To standard error, if it takes it: a full disk is no reason not to serve."""
    if config.log_format == "json":
        level = logging.INFO if message else logging.ERROR
        log.log(level, message or text, extra={"fields": fields or {}})
        return
    with contextlib.suppress(OSError):
        os.write(_STDERR, f"{text}\n".encode(errors="replace"))


class _Signals:
    """Ends what is going on: loading, serving, or the wait for open requests."""

    def __init__(self) -> None:
        self.taken: int | None = None
        self._loading = asyncio.current_task()
        self._serving: Serving | Supervisor | None = None
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._take, number)

    def loaded(self, serving: Serving | Supervisor) -> None:
        """From now on there is something to drain."""
        self._serving, self._loading = serving, None

    def _take(self, number: int) -> None:
        again, self.taken = self.taken is not None, number if self.taken is None else self.taken
        if self._serving is None:
            if self._loading is not None and not again:
                self._loading.cancel()
        elif again:
            self._serving.stop()
        else:
            self._serving.drain()
