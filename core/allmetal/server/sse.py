"""Server-sent events, and noticing that nobody listens any more."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from allmetal.errors import AllmetalError
from allmetal.server import context
from allmetal.server.errors import body_of

T = TypeVar("T")
DONE = b"data: [DONE]\n\n"
COMMENT = b": still here\n\n"
log = logging.getLogger(__name__)


class ClientGoneError(Exception):
    """The client closed the connection before the answer was ready."""


def event(body: object) -> bytes:
    return b"data: " + msgspec.json.encode(body) + b"\n\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wire:
    """How one API writes its streams: an item, what went wrong, and what comes at the end."""

    item: Callable[[Any], bytes] = event
    failed: Callable[[Exception], bytes]
    end: bytes = b""


def named(body: Mapping[str, Any]) -> bytes:
    """An event that says its type beside the data, for clients that look there."""
    return f"event: {body['type']}\n".encode() + event(body)


OPENAI = Wire(failed=lambda error: event(body_of(error)), end=DONE)


class EventStream(Response):
    """Each item of `events` as it comes, then the end of its `wire`.

    The first item is awaited before anything is sent, so that what is wrong with a request is
    still an HTTP status; but not beyond `context.keep_alive_s`, for proxies close what is silent.
    An error after that is an event, and no end follows.  `events` is closed when the client leaves.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        first: asyncio.Future[object],
        events: AsyncGenerator[object, None],
        wire: Wire = OPENAI,
    ) -> None:
        super().__init__(headers={"cache-control": "no-cache", "x-accel-buffering": "no"})
        del self.headers["content-length"]  # it is not known
        self._first = first
        self._events = events
        self._wire = wire
        self._last_sent = 0.0

    @classmethod
    async def start(
        cls, receive: Receive, events: AsyncGenerator[object, None], wire: Wire = OPENAI
    ) -> EventStream:
        first = asyncio.ensure_future(anext(events))
        try:
            silence = asyncio.wait((first,), timeout=context.keep_alive_s.get() or None)
            await unless_disconnected(receive, silence)
            if first.done():
                first.result()
        except BaseException:
            await _cancelled(first)
            await events.aclose()
            raise
        return cls(first, events, wire)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await unless_disconnected(receive, self._stream(send))
        except ClientGoneError:
            pass
        finally:
            await _cancelled(self._first)
            await self._events.aclose()

    async def _stream(self, send: Send) -> None:
        loop, wire = asyncio.get_running_loop(), self._wire
        start = {"type": "http.response.start", "status": self.status_code}
        await send({**start, "headers": self.raw_headers})
        self._last_sent = loop.time()
        beat = asyncio.create_task(self._keep_alive(send))
        try:
            try:
                await send(_part(wire.item(await self._first)))
                async for item in self._events:
                    await send(_part(wire.item(item)))
                    self._last_sent = loop.time()
                end = wire.end
            except Exception as error:  # the status is sent: tell it in the stream
                if not isinstance(error, AllmetalError):
                    log.exception("a stream failed")
                end = wire.failed(error)
        finally:
            await _cancelled(beat)
        await send({"type": "http.response.body", "body": end, "more_body": False})

    async def _keep_alive(self, send: Send) -> None:
        """A comment, which clients pass over, after each silence."""
        interval, loop = context.keep_alive_s.get(), asyncio.get_running_loop()
        while interval:
            silent = loop.time() - self._last_sent
            if silent >= interval:
                await send(_part(COMMENT))
                self._last_sent, silent = loop.time(), 0.0
            await asyncio.sleep(interval - silent)


def _part(body: bytes) -> Message:
    return {"type": "http.response.body", "body": body, "more_body": True}


async def _cancelled(task: asyncio.Future[Any]) -> None:
    if not task.done():
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
    elif not task.cancelled():
        task.exception()  # it has been told, or nobody listens


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
            await _cancelled(each)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
