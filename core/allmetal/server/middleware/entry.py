"""Where a request comes in: it gets a name, by which client, log and error speak of it."""

from __future__ import annotations

import re
import uuid

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from allmetal.server import context

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
        given = next((value for name, value in scope["headers"] if name == HEADER), b"")
        name = given if _FIT.fullmatch(given) else uuid.uuid4().hex.encode()
        context.request_id.set(name.decode())
        context.keep_alive_s.set(self._keep_alive_s)
        context.anthropic.set(scope["path"].startswith(ANTHROPIC))

        async def named(message: Message) -> None:
            if message["type"] == "http.response.start":
                names = [(HEADER, name)]
                if context.anthropic.get():
                    names.append((b"request-id", name))  # where that API's clients look
                message["headers"] = [*message["headers"], *names]
            await send(message)

        await self._app(scope, receive, named)
