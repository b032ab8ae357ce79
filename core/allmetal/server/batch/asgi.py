"""Calls of an ASGI application without a socket."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass

from starlette.types import ASGIApp, Message

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    status: int
    request_id: str
    body: bytes


async def post(app: ASGIApp, path: str, body: bytes) -> Reply:
    """Raises what the application raises without answering."""
    sent = False
    status: int | None = None
    headers: dict[bytes, bytes] = {}
    parts: list[bytes] = []

    async def receive() -> Message:
        nonlocal sent
        if sent:  # the client stays until it has its answer
            await asyncio.Event().wait()
        sent = True
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Message) -> None:
        nonlocal status, headers
        if message["type"] == "http.response.start":
            status, headers = message["status"], dict(message["headers"])
        else:
            parts.append(message.get("body", b""))

    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [(b"content-type", b"application/json")],
        "client": None,
        "server": None,
    }
    try:
        await app(scope, receive, send)
    except Exception:
        if status is None:
            raise
        log.exception("a request failed")  # it has its answer: an internal error
    assert status is not None
    request_id = headers.get(b"x-request-id", b"").decode()
    return Reply(status=status, request_id=request_id, body=b"".join(parts))
