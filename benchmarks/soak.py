"""Holds many slow streams at once before a server, and tells what came of them.

    python benchmarks/soak.py http://127.0.0.1:8000 --streams 2000 --hold 30

Every stream must begin, and must get an event in every window of the hold; then all clients leave
without a word, and the server's `/load` must come back to nothing.  Raw sockets, since two thousand
clients of any library would be what is measured.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import sys
import time
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

_AT_ONCE = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """`held`: streams that were open together for `hold_s`; `starved`: those of them that got no
    event in some window.  Times in seconds."""

    held: int
    failed: int
    starved: int
    began_in_s: float
    num_events: int
    longest_wait_for_first_s: float
    idle_again_in_s: float | None


class Stream(asyncio.Protocol):
    def __init__(self, request: bytes) -> None:
        self.request = request
        self.sent_at = time.perf_counter()
        self.first_after_s = 0.0
        self.num_events = 0
        self.began = asyncio.Event()
        self.error: str | None = None
        self._closed = False
        self._head = b""

    def connection_made(self, transport: Any) -> None:
        self.transport: asyncio.Transport = transport
        transport.write(self.request)

    def data_received(self, data: bytes) -> None:
        events = data.count(b"data: {")
        if not self.began.is_set():
            self._head += data
            if b"\r\n\r\n" not in self._head:
                return
            if not self._head.startswith(b"HTTP/1.1 200"):
                self._end(self._head[:200].decode(errors="replace"))
                return
            events = self._head.count(b"data: {")
            if events:
                self.first_after_s = time.perf_counter() - self.sent_at
                self.began.set()
        if b'"error"' in data or b"[DONE]" in data:
            self._end(data[-300:].decode(errors="replace"))
        self.num_events += events

    def connection_lost(self, error: Exception | None) -> None:
        if not self._closed:
            self._end(f"the connection was lost: {error}")

    def leave(self) -> None:
        self._closed = True
        self.transport.abort()

    def _end(self, why: str) -> None:
        self.error = self.error or why
        self.began.set()


def request_of(host: str, body: dict[str, Any]) -> bytes:
    data = json.dumps(body).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nhost: {host}\r\ncontent-length: {len(data)}\r\n\r\n"
    return head.encode() + data


async def load_of(host: str, port: int) -> dict[str, float]:
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(f"GET /load HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n".encode())
    answer = await reader.read()
    writer.close()
    load: dict[str, float] = json.loads(answer.partition(b"\r\n\r\n")[2])
    return load


async def soak(url: str, *, streams: int, hold_s: float, max_tokens: int, windows: int) -> Report:
    """Raises nothing of what goes wrong with a stream: it is in the report."""
    parts = urlsplit(url)
    host, port = parts.hostname or "127.0.0.1", parts.port or 80
    body = {"prompt": "x", "max_tokens": max_tokens, "ignore_eos": True, "stream": True}
    body |= {"skip_special_tokens": False}  # some models that compute nothing give only such
    request, loop = request_of(host, body), asyncio.get_running_loop()
    begin = time.perf_counter()
    at_once = asyncio.Semaphore(_AT_ONCE)

    async def open_one() -> Stream:
        async with at_once:
            return (await loop.create_connection(lambda: Stream(request), host, port))[1]

    opened = await asyncio.gather(*(open_one() for _ in range(streams)))
    await asyncio.gather(*(each.began.wait() for each in opened))
    began_in_s = time.perf_counter() - begin
    starved: set[int] = set()
    for _ in range(windows):
        seen = [each.num_events for each in opened]
        await asyncio.sleep(hold_s / windows)
        starved |= {i for i, each in enumerate(opened) if each.num_events == seen[i]}
    failed = [each.error for each in opened if each.error is not None]
    for error in list(dict.fromkeys(failed))[:3]:
        print(f"failed: {error}", file=sys.stderr)
    for each in opened:
        each.leave()
    return Report(
        held=streams - len(failed),
        failed=len(failed),
        starved=len(starved),
        began_in_s=began_in_s,
        num_events=sum(each.num_events for each in opened),
        longest_wait_for_first_s=max(each.first_after_s for each in opened),
        idle_again_in_s=await _idle_again(host, port),
    )


async def _idle_again(host: str, port: int) -> float | None:
    begin = time.perf_counter()
    while time.perf_counter() - begin < 30:
        load = await load_of(host, port)
        if not any(load.values()):
            return time.perf_counter() - begin
        await asyncio.sleep(0.05)
    return None


def more_files() -> None:
    """As many open files as this user may have."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("--streams", type=int, default=2000)
    parser.add_argument("--hold", type=float, default=30.0, metavar="SECONDS")
    parser.add_argument("--windows", type=int, default=3)
    parser.add_argument("--max-tokens", type=int, default=4000)
    args = parser.parse_args()
    more_files()
    work = soak(
        args.url,
        streams=args.streams,
        hold_s=args.hold,
        max_tokens=args.max_tokens,
        windows=args.windows,
    )
    print(asyncio.run(work))


if __name__ == "__main__":
    main()
