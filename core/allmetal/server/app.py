"""The application: routes, and what is around every handler."""

from __future__ import annotations

import asyncio
import contextlib
import hmac

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from allmetal import __version__
from allmetal.config import ServerConfig
from allmetal.engine.async_engine import AsyncEngine
from allmetal.engine.engine import EngineStats
from allmetal.errors import AllmetalError
from allmetal.platform.render import to_json
from allmetal.server import errors
from allmetal.server.metrics import Metrics
from allmetal.server.openai.chat import create_chat_completion
from allmetal.server.openai.completions import create_completion
from allmetal.server.openai.models import list_models, show_model
from allmetal.server.responses import JSON
from allmetal.server.sse import ClientGoneError
from allmetal.server.state import ServerState, state_of

# A scrape does not wait for a long step; it gets the numbers of the one before.
_STATS_TIMEOUT_S = 1.0


def create_app(engine: AsyncEngine, config: ServerConfig) -> Starlette:
    """An ASGI application in front of a running engine, which it does not close."""
    app = Starlette(
        routes=[
            Route("/v1/completions", create_completion, methods=["POST"]),
            Route("/v1/chat/completions", create_chat_completion, methods=["POST"]),
            Route("/v1/models", list_models),
            Route("/v1/models/{name:path}", show_model),
            Route("/v1/platform", platform),
            Route("/health", health),
            Route("/metrics", metrics),
            Route("/version", version),
        ],
        middleware=[Middleware(_ApiKey, key=config.api_key)] if config.api_key else [],
        exception_handlers={
            AllmetalError: errors.on_error,
            ClientGoneError: _on_client_gone,
            HTTPException: errors.on_http_error,
            Exception: errors.on_error,
        },
    )
    app.state.server = ServerState.make(engine, config)
    return app


async def health(request: Request) -> Response:
    """200 while the engine lives, 503 after."""
    error = state_of(request).engine.error
    if error is None:
        return JSON({"status": "ok"})
    return JSON({"status": "dead", "reason": error.message}, status_code=503)


async def metrics(request: Request) -> Response:
    state = state_of(request)
    stats: EngineStats | None = None
    with contextlib.suppress(AllmetalError, asyncio.TimeoutError):
        stats = await asyncio.wait_for(state.engine.stats(), _STATS_TIMEOUT_S)
    return Response(state.metrics.render(stats), media_type=Metrics.content_type)


async def platform(request: Request) -> Response:
    """The plan: what was asked, what it got, and why."""
    return JSON(to_json(state_of(request).engine.plan))


async def version(_: Request) -> Response:
    return JSON({"version": __version__})


async def _on_client_gone(_: Request, __: Exception) -> Response:
    return Response(status_code=499)  # nobody reads it


class _ApiKey:
    """Lets nobody without the key past /v1."""

    def __init__(self, app: ASGIApp, key: str) -> None:
        self._app = app
        self._expected = f"Bearer {key}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"].startswith("/v1"):
            given = dict(scope["headers"]).get(b"authorization", b"")
            if not hmac.compare_digest(given, self._expected):
                body = errors.body_of(errors.WrongKeyError("the API key is missing or wrong"))
                await JSON(body, status_code=401)(scope, receive, send)
                return
        await self._app(scope, receive, send)
