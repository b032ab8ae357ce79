"""Several processes that speak HTTP before one engine: which of them answers is no matter."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from servers import NAME, Server, gone, until

LONG: dict[str, Any] = {"model": NAME, "prompt": "x", "max_tokens": 4000, "ignore_eos": True}
LONG |= {"stream": True}


@pytest.fixture(scope="module")
def several(tiny_llama: Path) -> Iterator[Server]:
    with Server(tiny_llama, "--api-processes", "2", "--restart") as running:
        until(lambda: len(answering(running, 20)) == 2, 30)
        yield running


def answering(server: Server, number: int) -> set[int]:
    """The workers that hold one of `number` connections."""
    clients = [httpx.Client(timeout=10) for _ in range(number)]
    try:
        threads = [threading.Thread(target=c.get, args=(f"{server.url}/health",)) for c in clients]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return {worker.pid for worker in server.workers if connections(worker)}
    finally:
        for client in clients:
            client.close()


def connections(worker: Any) -> int:
    return sum(each.status == "ESTABLISHED" for each in worker.net_connections("tcp"))


class Stream(threading.Thread):
    """A long answer, until `enough` or its end."""

    def __init__(self, server: Server) -> None:
        super().__init__(daemon=True)
        self.enough = threading.Event()
        self.num_events = 0
        self.last = ""
        self.error: Exception | None = None
        self._url = f"{server.url}/v1/completions"
        self.start()

    def run(self) -> None:
        try:
            with httpx.stream("POST", self._url, json=LONG, timeout=30) as answer:
                for line in answer.iter_lines():
                    self.num_events += bool(line)
                    self.last = line or self.last
                    if self.enough.is_set():
                        return
        except httpx.HTTPError as error:
            self.error = error


def running(server: Server) -> float:
    return float(server.get("/load").json()["running"])


def test_what_they_counted_is_added_up_whoever_is_asked(several: Server) -> None:
    names = ("request_success_total", "request_prompt_tokens_sum", "prompt_tokens_total")
    before = [several.metric(name) for name in names]
    for _ in range(12):
        body = {"prompt": [5] * 3, "max_tokens": 2, "ignore_eos": True}
        assert several.post("/v1/completions", body).status_code == 200

    for _ in range(6):
        after = [several.metric(name) for name in names]
        assert [12, 36, 36] == [b - a for a, b in zip(before, after, strict=True)]


def test_one_that_dies_takes_nobody_along(several: Server) -> None:
    old, engine = several.workers, several.engine
    streams = [Stream(several) for _ in range(12)]
    until(lambda: all(each.num_events > 3 for each in streams), 20)
    counts = {worker.pid: connections(worker) for worker in old}
    victim = min(old, key=lambda worker: counts[worker.pid] or 99)
    assert counts[victim.pid] > 0

    victim.kill()
    until(lambda: sum(not each.is_alive() for each in streams) > 0, 5)
    time.sleep(0.3)
    broken = [each for each in streams if not each.is_alive()]
    alive = [each for each in streams if each.is_alive()]
    assert len(broken) <= counts[victim.pid]
    assert all(isinstance(each.error, httpx.TransportError) for each in broken)
    seen = [each.num_events for each in alive]
    until(lambda: all(each.num_events > n for each, n in zip(alive, seen, strict=True)), 5)
    until(lambda: running(several) == len(alive), 5)  # nothing computes for the dead

    for each in alive:
        each.enough.set()
        each.join(5)
    until(lambda: running(several) == 0, 5)
    assert not gone(engine)
    until(lambda: len(several.workers) == 2, 10)
    assert several.get("/load").json()["kv_cache_usage"] == 0


def test_all_of_them_hear_of_a_dead_engine_and_of_the_next(several: Server) -> None:
    until(lambda: len(answering(several, 20)) == 2, 30)
    streams = [Stream(several) for _ in range(12)]
    until(lambda: all(each.num_events > 3 for each in streams), 20)

    several.engine.kill()
    for each in streams:
        each.join(5)
        assert "is being started again" in each.last
    ready = {several.get("/ready").status_code for _ in range(8)}
    assert ready == {503}

    until(lambda: several.get("/ready").status_code == 200, 60)
    for _ in range(8):
        assert several.post("/v1/completions", {"prompt": "x", "max_tokens": 2}).status_code == 200


def test_sigterm_lets_their_open_requests_end(tiny_llama: Path) -> None:
    server = Server(tiny_llama, "--api-processes", "2")
    processes = [server.engine, *server.workers]
    body = {**LONG, "max_tokens": 500}
    with httpx.stream("POST", f"{server.url}/v1/completions", json=body, timeout=30) as answer:
        lines = answer.iter_lines()
        next(lines)
        server.process.send_signal(signal.SIGTERM)
        assert [line for line in lines if line][-1] == "data: [DONE]"

    assert server.wait(20) == 0
    assert all(gone(each) for each in processes)
    assert "Traceback" not in server.log
    assert "Fatal" not in server.log


def test_a_killed_supervisor_takes_all_of_them_along(tiny_llama: Path) -> None:
    server = Server(tiny_llama, "--api-processes", "2")
    stream = Stream(server)
    until(lambda: stream.num_events > 3, 30)
    processes = [server.engine, *server.workers]
    assert len(processes) == 3

    server.process.kill()

    until(lambda: all(gone(each) for each in processes), 3)
    stream.join(5)
    assert isinstance(stream.error, httpx.TransportError)
