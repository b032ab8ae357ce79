"""API keys."""

from __future__ import annotations

import hmac

from starlette.types import ASGIApp, Receive, Scope, Send

from allmetal.server import errors
from allmetal.server.responses import JSON


class ApiKey:
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
