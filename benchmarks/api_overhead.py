"""What a server costs around its engine: time to the first token, between tokens, CPU per event.

    python benchmarks/api_overhead.py http://127.0.0.1:8000 --model tiny
    python benchmarks/api_overhead.py URL --model NAME --pid $(pgrep -f "vllm serve" | head -1)

Any server with the OpenAI API: what is sent is what all of them know.  Streams are opened
`--concurrency` at a time and read by raw sockets, whose own cost is some 5 µs an event.  With
`--pid` the CPU time of that process and of its children is divided by the events, engine's process
apart where the names tell it; on a model that computes next to nothing that is the API's overhead.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import time
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any
from urllib.parse import urlsplit

import psutil


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Milliseconds, but for `cpu_us_per_event`, which is None without a process to look at."""

    concurrency: int
    requests: int
    failed: int
    events_per_s: float
    ttft_p50: float
    ttft_p99: float
    itl_p50: float
    itl_p99: float
    e2e_p50: float
    cpu_us_per_event: dict[str, float] | None


class Answer(asyncio.Protocol):
    """The events of one streamed answer, and when each chunk of them came."""

    def __init__(self, request: bytes) -> None:
        self.request = request
        self.sent = 0.0
        self.times: list[float] = []
        self.done: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._tail = b""

    def connection_made(self, transport: Any) -> None:
        self.transport: asyncio.Transport = transport
        self.sent = time.perf_counter()
        transport.write(self.request)

    def data_received(self, data: bytes) -> None:
        now = time.perf_counter()
        self.times += [now] * data.count(b"data: {")
        self._tail = (self._tail + data)[-64:]
        if b"data: [DONE]" in self._tail and not self.done.done():
            self.done.set_result(True)
            self.transport.close()

    def connection_lost(self, error: Exception | None) -> None:
        if not self.done.done():
            self.done.set_result(False)


def processes(pid: int) -> dict[str, float]:
    """CPU seconds so far: of the engine's process, and of all others."""
    seconds = {"api": 0.0, "engine": 0.0}
    root = psutil.Process(pid)
    for process in (root, *root.children(recursive=True)):
        words = " ".join(process.cmdline()) + process.name()
        # A worker of ours speaks HTTP; one of vLLM's computes.
        computes = any(name in words.lower() for name in ("engine", "vllm::worker"))
        part = "engine" if computes else "api"
        seconds["api" if process.pid == pid else part] += sum(process.cpu_times()[:2])
    return seconds


def request_of(host: str, args: argparse.Namespace) -> bytes:
    body: dict[str, Any] = {"model": args.model, "stream": True, "max_tokens": args.max_tokens}
    body |= {"temperature": 0.0, "ignore_eos": True, "skip_special_tokens": False}
    if args.path.endswith("chat/completions"):
        body["messages"] = [{"role": "user", "content": args.prompt}]
    else:
        body["prompt"] = args.prompt
    data = json.dumps(body).encode()
    head = f"POST {args.path} HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\n"
    if args.api_key:
        head += f"authorization: Bearer {args.api_key}\r\n"
    return f"{head}content-length: {len(data)}\r\n\r\n".encode() + data


async def measure(args: argparse.Namespace, concurrency: int) -> Figures:
    parts = urlsplit(args.url)
    host, port = parts.hostname or "127.0.0.1", parts.port or 80
    request, loop = request_of(host, args), asyncio.get_running_loop()
    room = asyncio.Semaphore(concurrency)
    answers: list[Answer] = []

    async def ask() -> None:
        async with room:
            _, answer = await loop.create_connection(lambda: Answer(request), host, port)
            answers.append(answer)
            await answer.done

    for _ in range(2):
        await ask()
    answers.clear()
    number = max(args.requests, 2 * concurrency)
    cpu = processes(args.pid) if args.pid else {}
    begin = time.perf_counter()
    await asyncio.gather(*(ask() for _ in range(number)))
    took = time.perf_counter() - begin
    used = processes(args.pid) if args.pid else {}
    good = [answer for answer in answers if answer.done.result() and answer.times]
    events = sum(len(answer.times) for answer in good)
    ttft = [1e3 * (answer.times[0] - answer.sent) for answer in good]
    gaps = [1e3 * (b - a) for each in good for a, b in pairwise(each.times)]
    return Figures(
        concurrency=concurrency,
        requests=number,
        failed=number - len(good),
        events_per_s=events / took,
        ttft_p50=statistics.median(ttft),
        ttft_p99=at(ttft, 0.99),
        itl_p50=statistics.median(gaps),
        itl_p99=at(gaps, 0.99),
        e2e_p50=statistics.median(1e3 * (each.times[-1] - each.sent) for each in good),
        cpu_us_per_event={k: 1e6 * (used[k] - cpu[k]) / events for k in cpu} or None,
    )


def at(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("url", help="http://HOST:PORT")
    parser.add_argument("--model", required=True, help="the name that the server knows it by")
    parser.add_argument("--path", default="/v1/completions")
    parser.add_argument("--api-key")
    parser.add_argument("--prompt", default="one two three")
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 16, 64, 256])
    parser.add_argument("--pid", type=int, help="the server's process, for its CPU time")
    args = parser.parse_args()
    for concurrency in args.concurrency:
        print(json.dumps(asdict(asyncio.run(measure(args, concurrency)))), flush=True)


if __name__ == "__main__":
    main()
