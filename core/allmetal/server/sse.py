"""Server-sent events, and noticing that nobody listens any more."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Coroutine
from typing import Any, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from allmetal.server.errors import body_of

T = TypeVar("T")
DONE = b"data: [DONE]\n\n"


def event(body: object) -> bytes:
    return b"data: " + msgspec.json.encode(body) + b"\n\n"


class EventStream(StreamingResponse):
    """Each item of `events` as it comes, then `[DONE]`.

    The first item is awaited before anything is sent, so that what is wrong with a request is
    still an HTTP status.  An error after that is an event with an `error`, and no `[DONE]`.
    """

    def __init__(self, events: AsyncGenerator[object, None]) -> None:
        self._events = events
        super().__init__(
            self._encoded(),
            media_type="text/event-stream",
            headers={"cache-control": "no-cache", "x-accel-buffering": "no"},
        )
        self._first: object = None

    @classmethod
    async def start(cls, request: Request, events: AsyncGenerator[object, None]) -> Response:
        stream = cls(events)
        stream._first = await unless_disconnected(request, anext(events))
        return stream

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            # The request must not go on for a client that left.
            await self._events.aclose()

    async def _encoded(self) -> AsyncGenerator[bytes, None]:
        yield event(self._first)
        try:
            async for item in self._events:
                yield event(item)
        except Exception as error:
            yield event(body_of(error))
        else:
            yield DONE


class ClientGoneError(Exception):
    """The client closed the connection before the answer was ready."""


async def unless_disconnected(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Result of `work`, which is cancelled when the client closes the connection."""
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientGoneError
        return task.result()
    finally:
        for each in (task, gone):
            each.cancel()
        for each in (task, gone):
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await each


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
