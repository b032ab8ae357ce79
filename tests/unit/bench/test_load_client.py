"""What a server does to a client's connections, and what is told of it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable

import pytest

from allmetal.bench.load.client import Client
from allmetal.bench.load.drive import Run, drive
from allmetal.bench.load.records import Call
from allmetal.bench.load.settings import LoadSettings

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: %d\r\n\r\n"
PIECE = b'data: {"choices":[{"text":"a","finish_reason":%s}]}\n\n'
END = b'data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2}}\n\ndata: [DONE]\n\n'
BODY = PIECE % b"null" + PIECE % b'"length"' + END

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def request(reader: asyncio.StreamReader) -> bool:
    """Read one; False where the client has gone."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return False
    length = next(h for h in head.split(b"\r\n") if h.lower().startswith(b"content-length"))
    await reader.readexactly(int(length.split(b":")[1]))
    return True


def measured(serve: Serve, count: int = 3) -> Run:
    async def run() -> Run:
        async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            made = Run()
            async with Client(f"http://127.0.0.1:{port}", LoadSettings(model="m")) as client:
                calls = [Call(prompt="x", output_len=2)] * count
                await drive(client, calls, None, limit=1, run=made)
            return made

    return asyncio.run(run())


def test_a_kept_connection_that_was_closed_is_no_failure() -> None:
    """Servers close idle connections just when the next request is on its way."""
    num_connections = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal num_connections
        num_connections += 1
        await request(reader)
        writer.write(HEAD % len(BODY) + BODY)
        await request(reader)  # the next one is not answered
        writer.close()

    run = measured(serve)

    assert [None] * 3 == [record.error for record in run.records]
    assert num_connections == 3
    assert [2] * 3 == [len(record.pieces) for record in run.records]


def test_a_new_connection_that_is_closed_is_a_failure() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request(reader)
        writer.close()

    errors = [record.error or "" for record in measured(serve).records]

    assert len(errors) == 3
    assert all("ServerDisconnectedError" in error for error in errors)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (PIECE % b"null", "the stream broke off"),
        (b'data: {"error":{"message":"out of luck"}}\n\n', "in the stream: .*out of luck"),
        (END, "the answer is empty"),
        (b"data: {nonsense\n\n", "DecodeError"),
    ],
)
def test_an_answer_that_is_none_is_a_failure(body: bytes, message: str) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await request(reader):
            writer.write(HEAD % len(body) + body)

    [record] = measured(serve, 1).records

    assert record.error is not None
    assert re.search(message, record.error)


def test_an_answer_with_another_status_is_a_failure_with_what_it_says() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await request(reader):
            writer.write(b"HTTP/1.1 429 Busy\r\nContent-Length: 5\r\n\r\nlater")

    assert ["HTTP 429: later"] * 3 == [record.error for record in measured(serve).records]
