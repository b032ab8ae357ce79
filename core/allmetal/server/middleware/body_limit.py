"""No body is read beyond a limit, whether it says its length or not."""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from allmetal.server import errors


class BodyLimit:
    def __init__(self, app: ASGIApp, limit: int) -> None:
        self._app = app
        self._limit = limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if _told(scope) > self._limit:
            answer = errors.response(self._error())
            answer.headers["connection"] = "close"  # what it sends is not wanted
            await answer(scope, receive, send)
            return
        seen = 0

        async def counted() -> Message:
            nonlocal seen
            message = await receive()
            seen += len(message.get("body", b""))
            if seen > self._limit:
                raise self._error()
            return message

        await self._app(scope, counted, send)

    def _error(self) -> errors.BodyTooLargeError:
        return errors.BodyTooLargeError(
            f"the body is larger than {self._limit} bytes",
            hint="send less, or start the server with a larger --max-body-bytes",
        )


def _told(scope: Scope) -> int:
    """Content-Length, 0 where there is none; HTTP servers refuse what is no number."""
    value = next((value for name, value in scope["headers"] if name == b"content-length"), b"0")
    return int(value) if value.isdigit() else 0
