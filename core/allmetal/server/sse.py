"""Server-sent events, and noticing that nobody listens any more."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Awaitable
from typing import TypeVar

import msgspec
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from allmetal.errors import AllmetalError
from allmetal.server.errors import body_of

T = TypeVar("T")
DONE = b"data: [DONE]\n\n"
log = logging.getLogger(__name__)


class ClientGoneError(Exception):
    """The client closed the connection before the answer was ready."""


def event(body: object) -> bytes:
    return b"data: " + msgspec.json.encode(body) + b"\n\n"


class EventStream(StreamingResponse):
    """Each item of `events` as it comes, then `[DONE]`.

    The first item is awaited before anything is sent, so that what is wrong with a request is
    still an HTTP status.  An error after that is an event with an `error`, and no `[DONE]`.
    `events` is closed when the client leaves.
    """

    def __init__(self, first: object, events: AsyncGenerator[object, None]) -> None:
        self._events = events
        super().__init__(
            self._encoded(first),
            media_type="text/event-stream",
            headers={"cache-control": "no-cache", "x-accel-buffering": "no"},
        )

    @classmethod
    async def start(cls, receive: Receive, events: AsyncGenerator[object, None]) -> EventStream:
        try:
            return cls(await unless_disconnected(receive, anext(events)), events)
        except BaseException:
            await events.aclose()
            raise

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await unless_disconnected(receive, self.stream_response(send))
        except ClientGoneError:
            pass
        finally:
            await self._events.aclose()

    async def _encoded(self, first: object) -> AsyncGenerator[bytes, None]:
        yield event(first)
        try:
            async for item in self._events:
                yield event(item)
        except Exception as error:  # the status is sent: tell it in the stream
            if not isinstance(error, AllmetalError):
                log.exception("a stream failed")
            yield event(body_of(error))
        else:
            yield DONE


async def unless_disconnected(receive: Receive, work: Awaitable[T]) -> T:
    """Result of `work`.  When the client leaves first, cancels it and raises ClientGoneError."""
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientGoneError
        return task.result()
    finally:
        for each in (task, gone):
            if not each.done():
                each.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await each


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
