"""ASGI servers under our application, by figures: latency, events, connections held, memory.

    python benchmarks/http_servers.py --servers uvicorn-h11 uvicorn granian

The application is the real one's outer half: the same middleware and the same stream of events,
with an engine's place taken by a timer, so that what differs is the HTTP server.  Each server is a
process of its own, so is the client, which speaks raw HTTP/1.1 over keep-alive connections.

* latency: a small JSON answer, one connection, one request after another
* latency, busy: the same while 2,000 streams get an event a second each
* events: 64 streams that get events as fast as they can be written
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import resource
import socket
import time
from collections.abc import AsyncGenerator, Callable
from typing import Any

import psutil
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from allmetal.server.middleware.body_limit import BodyLimit
from allmetal.server.responses import JSON
from allmetal.server.sse import EventStream

EVENT = {"id": "cmpl-0123456789abcdef", "object": "text_completion", "model": "x"}
EVENT |= {"choices": [{"index": 0, "text": " word", "finish_reason": None}]}  # type: ignore[dict-item]


async def stream(request: Request) -> Response:
    body = await request.json()

    async def events() -> AsyncGenerator[object, None]:
        for _ in range(body["number"]):
            yield EVENT
            await asyncio.sleep(body["pause"])

    return await EventStream.start(request.receive, events())


async def small(request: Request) -> Response:
    return JSON({"got": len(await request.body())})


def app() -> Starlette:
    routes = [
        Route("/stream", stream, methods=["POST"]),
        Route("/small", small, methods=["POST"]),
    ]
    return Starlette(routes=routes, middleware=[Middleware(BodyLimit, limit=1 << 20)])


# ---- servers -----------------------------------------------------------------------------------


def uvicorn_with(http: str, loop: str) -> Callable[[int], None]:
    def run(port: int) -> None:
        import uvicorn

        uvicorn.run(
            app(),
            port=port,
            http=http,
            loop=loop,
            lifespan="off",
            log_level="error",
            access_log=False,
            backlog=2048,
        )  # type: ignore[arg-type]

    return run


def granian_with(loop: str) -> Callable[[int], None]:
    def run(port: int) -> None:
        from granian.constants import Interfaces
        from granian.server.embed import Server

        async def main() -> None:
            server = Server(
                app(),
                port=port,
                interface=Interfaces.ASGINL,
                backlog=2048,
                log_enabled=False,
                backpressure=10_000,
            )
            await server.serve()

        if loop == "uvloop":
            import uvloop

            uvloop.run(main())
        else:
            asyncio.run(main())

    return run


SERVERS = {
    "uvicorn-h11": uvicorn_with("h11", "asyncio"),
    "uvicorn-httptools": uvicorn_with("httptools", "asyncio"),
    "uvicorn": uvicorn_with("httptools", "uvloop"),
    "granian-asyncio": granian_with("asyncio"),
    "granian": granian_with("uvloop"),
}


def _start(name: str, port: int) -> None:
    more_files()
    SERVERS[name](port)


def more_files() -> None:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


# ---- client ------------------------------------------------------------------------------------


def post(path: str, body: dict[str, Any]) -> bytes:
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    return f"{head}content-length: {len(data)}\r\n\r\n".encode() + data


async def small_latencies(port: int, number: int) -> list[float]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    request = post("/small", {"x": "y" * 200})
    took = []
    for _ in range(number):
        begin = time.perf_counter()
        writer.write(request)
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(
            int(line.split(b":")[1])
            for line in head.lower().split(b"\r\n")
            if line.startswith(b"content-length")
        )
        await reader.readexactly(length)
        took.append(time.perf_counter() - begin)
        await asyncio.sleep(0.001)
    writer.close()
    return took


class Counting(asyncio.Protocol):
    """A stream of which only the number of bytes, and its end, are looked at."""

    def __init__(self, request: bytes) -> None:
        self.request, self.num_bytes, self.tail = request, 0, b""
        self.began, self.done = asyncio.Event(), asyncio.Event()
        self.failed = False

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        transport.write(self.request)

    def data_received(self, data: bytes) -> None:
        self.num_bytes += len(data)
        self.tail = (self.tail + data)[-40:]
        self.began.set()
        if b"[DONE]" in self.tail:
            self.done.set()
            self.transport.close()

    def connection_lost(self, error: Exception | None) -> None:
        self.failed = not self.done.is_set()
        self.began.set()
        self.done.set()


async def streams(port: int, number: int, body: dict[str, Any]) -> list[Counting]:
    loop = asyncio.get_running_loop()
    request = post("/stream", body)
    made = []
    for _ in range(number):
        made.append((await loop.create_connection(lambda: Counting(request), "127.0.0.1", port))[1])
    for each in made:
        await each.began.wait()
    return made


def at(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


async def measure(port: int, pid: int, held: int) -> dict[str, float]:
    server = psutil.Process(pid)
    await small_latencies(port, 200)
    quiet = await small_latencies(port, 1500)
    rss_before = server.memory_info().rss
    seconds = 12
    slow = await streams(port, held, {"number": seconds, "pause": 1.0})
    cpu = sum(server.cpu_times()[:2])
    begin = time.perf_counter()
    busy = await small_latencies(port, 1000)
    share = (sum(server.cpu_times()[:2]) - cpu) / (time.perf_counter() - begin)
    rss = server.memory_info().rss - rss_before
    await asyncio.gather(*(each.done.wait() for each in slow))
    begin, number, cpu = time.perf_counter(), 2000, sum(server.cpu_times()[:2])
    fast = await streams(port, 64, {"number": number, "pause": 0})
    await asyncio.gather(*(each.done.wait() for each in fast))
    took, used = time.perf_counter() - begin, sum(server.cpu_times()[:2]) - cpu
    return {
        "p50_ms": at(quiet, 0.5) * 1e3,
        "p99_ms": at(quiet, 0.99) * 1e3,
        "busy_p50_ms": at(busy, 0.5) * 1e3,
        "busy_p99_ms": at(busy, 0.99) * 1e3,
        "held_failed": sum(each.failed for each in slow),
        "held_cpu": share,
        "held_kib_each": rss / held / 1024,
        "events_per_s": 64 * number / took,
        "us_cpu_per_event": used / (64 * number) * 1e6,
        "fast_failed": sum(each.failed for each in fast),
    }


def run(name: str, held: int) -> dict[str, float]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = multiprocessing.get_context("spawn").Process(target=_start, args=(name, port))
    process.start()
    assert process.pid is not None
    try:
        for _ in range(200):
            time.sleep(0.1)
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
        return asyncio.run(measure(port, process.pid, held))
    finally:
        process.kill()
        process.join()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--servers", nargs="+", choices=SERVERS, default=list(SERVERS))
    parser.add_argument("--held", type=int, default=2000, help="streams held at once")
    parser.add_argument("--rounds", type=int, default=1)
    args = parser.parse_args()
    more_files()
    for _ in range(args.rounds):
        for name in args.servers:
            result = run(name, args.held)
            figures = " ".join(f"{key}={value:.2f}" for key, value in result.items())
            print(f"{name}: {figures}", flush=True)


if __name__ == "__main__":
    main()
