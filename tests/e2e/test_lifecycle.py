"""Starting, ending, dying: nothing hangs, nothing is left behind."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from servers import NAME, Server, Start, gone, until

LONG: dict[str, Any] = {"model": NAME, "prompt": "x", "max_tokens": 4000, "temperature": 0}
LONG |= {"ignore_eos": True}


def running(server: Server) -> float:
    return server.metric("num_requests_running") + server.metric("num_requests_waiting")


class Background(threading.Thread):
    """A long request in a thread; `error` is what it raised, `text` what it brought."""

    def __init__(self, server: Server, *, stream: bool = True, max_tokens: int = 4000) -> None:
        super().__init__(daemon=True)
        self._client = server.client()
        self._body = {"stream": stream, "max_tokens": max_tokens}
        self.error: Exception | None = None
        self.text = ""
        self.finish_reason: str | None = None
        self.start()

    def run(self) -> None:
        try:
            self._request()
        except Exception as error:
            self.error = error

    def _request(self) -> None:
        extra = {"ignore_eos": True}
        answer: Any = self._client.completions.create(
            model=NAME, prompt="x", temperature=0, extra_body=extra, **self._body
        )  # type: ignore[call-overload]
        for part in answer if self._body["stream"] else [answer]:
            self.text += part.choices[0].text
            self.finish_reason = part.choices[0].finish_reason


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("path", ["completions", "chat/completions"])
def test_a_client_that_leaves_frees_its_request(server: Server, stream: bool, path: str) -> None:
    # Several answers, so that they take longer than it takes to see that nobody reads them.
    body = {**LONG, "stream": stream, "n": 8}
    if path.startswith("chat"):
        del body["prompt"]
        body["messages"] = [{"role": "user", "content": "x"}]
    before = server.metric("generation_tokens_total")
    data = json.dumps(body).encode()
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as connection:
        head = f"POST /v1/{path} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(data)}\r\n\r\n"
        connection.sendall(head.encode() + data)
        until(lambda: running(server) == 8, 5)

    until(lambda: running(server) == 0, 2)
    assert server.metric("generation_tokens_total") - before < 8 * 3900


def test_health_models_version_and_plan(server: Server) -> None:
    assert server.get("/health").json() == {"status": "ok"}
    assert server.get("/version").json()["version"]
    [model] = server.get("/v1/models").json()["data"]
    assert (model["id"], model["max_model_len"]) == (NAME, 4096)
    plan = server.get("/v1/platform").json()
    assert plan["platform"] == "cpu"
    assert {row["feature"] for row in plan["decisions"]} >= {"platform", "dtype", "block_size"}


def test_metrics_count_what_was_served(server: Server) -> None:
    names = ("prompt_tokens_total", "generation_tokens_total", "request_success_total")
    names += ("time_to_first_token_seconds_count", "inter_token_latency_seconds_count")
    before = [server.metric(name) for name in names]

    body = {"prompt": [5] * 10, "max_tokens": 7, "ignore_eos": True, "n": 2}
    assert server.post("/v1/completions", body).status_code == 200

    after = [server.metric(name) for name in names]
    assert [20, 14, 2] == [b - a for a, b in zip(before[:3], after[:3], strict=True)]
    assert after[3] - before[3] == 1
    assert after[4] > before[4]


def test_a_killed_engine_is_told_to_every_client_and_ends_the_server(start: Start) -> None:
    server = start()
    streaming, waiting = Background(server), Background(server, stream=False)
    until(lambda: running(server) == 2 and bool(streaming.text), 10)

    server.engine.send_signal(signal.SIGKILL)
    begin = time.perf_counter()
    streaming.join(5)
    waiting.join(5)

    assert time.perf_counter() - begin < 1.5
    assert isinstance(streaming.error, openai.APIError)
    assert "SIGKILL" in streaming.error.message
    assert isinstance(waiting.error, openai.InternalServerError)
    assert waiting.error.status_code == 503
    assert server.wait(10) == 1
    assert server.log.splitlines()[-1].startswith("error: the engine process is gone")
    assert "Traceback" not in server.log


def test_a_killed_engine_is_started_again_as_often_as_told(start: Start) -> None:
    server = start("--restart", "1")
    killed = server.engine
    requests = [Background(server) for _ in range(3)]
    until(lambda: running(server) == 3, 10)

    killed.send_signal(signal.SIGKILL)
    until(lambda: server.get("/ready").status_code == 503, 2)
    refused = server.post("/v1/completions", LONG)
    for request in requests:
        request.join(5)
        assert isinstance(request.error, openai.APIError)
        assert "is being started again" in request.error.message
    assert refused.status_code == 503
    assert int(refused.headers["retry-after"]) > 0
    assert server.get("/health").status_code == 503

    until(lambda: server.get("/ready").status_code == 200, 60)
    assert server.engine.pid != killed.pid
    assert running(server) == 0
    again = Background(server, max_tokens=5)
    again.join(10)
    assert again.finish_reason == "length"

    server.engine.send_signal(signal.SIGKILL)
    assert server.wait(10) == 1
    assert "Traceback" not in server.log


def test_sigterm_lets_open_requests_end_and_takes_no_new_ones(start: Start) -> None:
    server = start()
    engine = server.engine
    request = Background(server, max_tokens=300)
    until(lambda: bool(request.text), 10)

    server.process.send_signal(signal.SIGTERM)
    time.sleep(0.3)
    with pytest.raises(httpx.HTTPError):
        httpx.get(server.url + "/health", timeout=1)
    code = server.wait(30)
    request.join(5)

    assert code == 0
    assert request.error is None
    assert request.finish_reason == "length"
    assert gone(engine)
    assert "Traceback" not in server.log


def test_the_drain_has_an_end(start: Start) -> None:
    server = start("--drain-timeout", "0.1")
    engine = server.engine
    requests = [Background(server) for _ in range(4)]
    until(lambda: running(server) == 4, 10)

    server.process.send_signal(signal.SIGTERM)

    assert server.wait(10) == 0
    assert gone(engine)
    for request in requests:
        request.join(5)
        assert request.finish_reason is None
        assert isinstance(request.error, openai.APIError)
        assert "closed" in request.error.message
    assert "Traceback" not in server.log


@pytest.mark.parametrize("again", [False, True])
def test_ctrl_c_ends_the_server(start: Start, again: bool) -> None:
    server = start()
    engine = server.engine
    if again:
        Background(server)
        until(lambda: running(server) == 1, 10)
        server.process.send_signal(signal.SIGINT)
        time.sleep(0.3)
    server.process.send_signal(signal.SIGINT)

    assert server.wait(10) == 130
    assert gone(engine)
    assert "Traceback" not in server.log


def test_a_killed_server_takes_its_engine_along(start: Start) -> None:
    server = start()
    engine = server.engine
    Background(server)
    until(lambda: running(server) == 1, 10)

    server.process.kill()

    until(lambda: gone(engine), 2)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_loading_can_be_interrupted(tiny_llama: Path, number: signal.Signals) -> None:
    server = Server(tiny_llama, wait=False)
    try:
        time.sleep(1.0)
        server.process.send_signal(number)
        assert server.wait(10) in (0, 130, -number)
        assert "Traceback" not in server.log
    finally:
        server.kill()


def serve(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "allmetal", "serve", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_a_port_that_is_taken_is_an_error_before_loading(tiny_llama: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        done = serve(str(tiny_llama), "--port", str(taken.getsockname()[1]))

    assert done.returncode == 2
    assert done.stderr.startswith("error: cannot listen on 127.0.0.1")


def test_a_broken_checkpoint_is_an_error_with_a_hint(tiny_llama: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.mkdir()
    for file in tiny_llama.iterdir():
        data = file.read_bytes()
        (broken / file.name).write_bytes(data[:-100] if file.suffix == ".safetensors" else data)

    done = serve(str(broken), "--port", "0")

    assert done.returncode == 1
    assert done.stderr.startswith("error: ")
    assert "Traceback" not in done.stderr
