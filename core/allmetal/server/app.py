"""The application: every package's routes, and what is around every handler."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from allmetal.config import ServerConfig
from allmetal.engine.async_engine import AsyncEngine
from allmetal.errors import AllmetalError
from allmetal.server import errors
from allmetal.server.admin import routes as admin
from allmetal.server.anthropic import routes as anthropic
from allmetal.server.middleware.auth import ApiKey, api_keys
from allmetal.server.middleware.body_limit import BodyLimit
from allmetal.server.middleware.entry import Entry
from allmetal.server.openai import routes as openai
from allmetal.server.operation import routes as operation
from allmetal.server.pooling import routes as pooling
from allmetal.server.sse import ClientGoneError
from allmetal.server.state import ServerState
from allmetal.server.tokens import routes as tokens
from allmetal.server.ui import routes as ui

# Each API is a package whose routes.py says what it answers.
_APIS: Sequence[Callable[[], list[BaseRoute]]] = (
    openai.routes,
    anthropic.routes,
    pooling.routes,
    tokens.routes,
    admin.routes,
    operation.routes,
    ui.routes,
)


def create_app(engine: AsyncEngine, config: ServerConfig) -> Starlette:
    """An ASGI application in front of a running engine, which it does not close."""
    app = Starlette(
        routes=[route for routes in _APIS for route in routes()],
        middleware=_middleware(config),
        exception_handlers={
            AllmetalError: errors.on_error,
            ClientGoneError: _on_client_gone,
            HTTPException: errors.on_http_error,
            Exception: errors.on_bug,
        },
    )
    app.state.server = ServerState.make(engine, config)
    return app


def _middleware(config: ServerConfig) -> list[Middleware]:
    """Outermost first.  A browser asks whether it may call before it sends a key."""
    around = [Middleware(Entry, keep_alive_s=config.keep_alive)]
    if config.cors_origin:
        cors = Middleware(
            CORSMiddleware,
            allow_origins=config.cors_origin,
            allow_methods=("*",),
            allow_headers=("*",),
            expose_headers=("x-request-id", "retry-after"),
        )
        around.append(cors)
    if keys := api_keys(config):
        around.append(Middleware(ApiKey, keys=keys))
    return [*around, Middleware(BodyLimit, limit=config.max_body_bytes)]


async def _on_client_gone(_: Request, __: Exception) -> Response:
    return Response(status_code=499)  # nobody reads it
