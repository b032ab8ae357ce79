"""Where a request comes in: it gets a name, by which client, log and error speak of it."""

from __future__ import annotations

import re
import uuid

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from allmetal.server import context
from allmetal.server.metrics import Metrics

HEADER = b"x-request-id"
ANTHROPIC = "/v1/messages"

# It goes into logs and headers as it is, so it must be short and plain.
_FIT = re.compile(rb"[\x21-\x7e]{1,128}")


class Entry:
    """Takes a fitting X-Request-Id or makes one, and answers with it."""

    def __init__(self, app: ASGIApp, keep_alive_s: float) -> None:
        self._app = app
        self._keep_alive_s = keep_alive_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        given = headers.get(HEADER, b"")
        name = given if _FIT.fullmatch(given) else uuid.uuid4().hex.encode()
        context.request_id.set(name.decode())
        context.trace_parent.set(headers.get(b"traceparent", b"").decode("latin-1"))
        context.keep_alive_s.set(self._keep_alive_s)
        context.anthropic.set(scope["path"].startswith(ANTHROPIC))
        status = 500

        async def named(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                names = [(HEADER, name)]
                if context.anthropic.get():
                    names.append((b"request-id", name))  # where that API's clients look
                message["headers"] = [*message["headers"], *names]
            await send(message)

        try:
            await self._app(scope, receive, named)
        finally:
            metrics: Metrics = scope["app"].state.server.metrics
            metrics.answered(_path(scope), scope["method"], status)


def _path(scope: Scope) -> str:
    """As the route has it: what clients make up must not become a time series each."""
    if "endpoint" not in scope:
        return "none"
    if folder := scope.get("root_path"):  # of files
        return f"{folder}/{{path}}"
    path: str = scope["path"]
    for name, value in reversed(scope.get("path_params", {}).items()):
        before, found, after = path.rpartition(str(value))
        path = f"{before}{{{name}}}{after}" if found else "other"
    return path
