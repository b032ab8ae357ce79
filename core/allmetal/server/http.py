"""The HTTP server itself."""

from __future__ import annotations

import contextlib
import math
import socket
from collections.abc import Iterator

import uvicorn
from starlette.types import ASGIApp

from allmetal.config import ServerConfig
from allmetal.errors import ConfigError
from allmetal.server.tls import tls_options

_BACKLOG = 2048
# For clients that are slow to take their last words.
LAST_ANSWERS_S = 5.0


def bound(config: ServerConfig) -> socket.socket:
    """A socket that has the address and does not listen yet.  Raises ConfigError."""
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    # asyncio turns Nagle's delay off where a socket says that it is TCP's, and not where it leaves
    # that out: the second half of each answer would then wait 40 ms for the first one's receipt.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
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


def more_files() -> None:
    """Each connection is an open file: let there be as many as this user may have."""
    try:
        import resource
    except ImportError:  # where there is no such limit
        return
    now, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if now < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def listen(listener: socket.socket) -> None:
    """From now on connections wait until they are served."""
    listener.listen(_BACKLOG)


def url_of(listener: socket.socket, config: ServerConfig) -> str:
    host = f"[{config.host}]" if ":" in config.host else config.host
    scheme = "https" if config.tls_cert else "http"
    return f"{scheme}://{host}:{listener.getsockname()[1]}"


class HttpServer(uvicorn.Server):
    """Serves an application until `should_exit`, then lets open requests end."""

    def __init__(self, app: ASGIApp, config: ServerConfig) -> None:
        settings = uvicorn.Config(
            app,
            http="httptools",
            lifespan="off",
            log_config=None,
            log_level="warning",
            access_log=False,
            proxy_headers=False,  # nothing here depends on where a request comes from
            backlog=_BACKLOG,
            timeout_graceful_shutdown=math.ceil(config.drain_timeout + LAST_ANSWERS_S),
            **tls_options(config),
        )
        super().__init__(settings)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are ours, from before the model is loaded until it is gone."""
        yield
