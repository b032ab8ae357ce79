"""What a server tells of itself: metrics, log lines, traces; and that telling costs no service."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from prometheus_client.parser import text_string_to_metric_families
from servers import FLAGS, NAME, Server, Start, until

SHORT: dict[str, Any] = {"model": NAME, "prompt": [5] * 9, "max_tokens": 4, "ignore_eos": True}


@pytest.fixture(scope="module")
def narrow(tiny_llama: Path) -> Iterator[Server]:
    """Room for one sequence, one that waits, and prompts of a hundred tokens."""
    flags = ["--max-num-seqs", "1", "--max-waiting", "1", "--max-prompt-tokens", "100"]
    flags += ["--log-format", "json", "--log-requests", "--admin", "--api-key", "k"]
    with Server(tiny_llama, *flags) as running:
        running.headers = {"authorization": "Bearer k"}
        yield running


def samples(server: Server) -> dict[tuple[str, str], float]:
    """(name, finished_reason or "") -> value, without buckets."""
    text = server.get("/metrics").text
    return {
        (sample.name.removeprefix("allmetal:"), sample.labels.get("finished_reason", "")): (
            sample.value
        )
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name.startswith("allmetal:") and "le" not in sample.labels
    }


def test_every_time_and_length_of_a_request_is_counted(narrow: Server) -> None:
    before = samples(narrow)
    begin = time.perf_counter()
    assert narrow.post("/v1/completions", SHORT).status_code == 200
    took = time.perf_counter() - begin

    new = {key: value - before.get(key, 0.0) for key, value in samples(narrow).items()}
    assert new["request_success_total", "length"] == 1
    assert (new["prompt_tokens_total", ""], new["generation_tokens_total", ""]) == (9, 4)
    assert new["prefix_cache_queries_total", ""] == 9
    for name, value in {"prompt_tokens": 9, "generation_tokens": 4, "params_max_tokens": 4}.items():
        assert new[f"request_{name}_sum", ""] == value
        assert new[f"request_{name}_count", ""] == 1
    parts = [new[f"request_{part}_time_seconds_sum", ""] for part in ("queue", "prefill", "decode")]
    assert all(0 < part < took for part in parts)
    assert sum(parts) <= new["e2e_request_latency_seconds_sum", ""] < took
    ttft = new["time_to_first_token_seconds_sum", ""]
    assert sum(parts[:2]) == pytest.approx(ttft)
    assert new["request_inference_time_seconds_sum", ""] == pytest.approx(sum(parts[1:]))
    assert new["inter_token_latency_seconds_count", ""] == 3
    assert new["inter_token_latency_seconds_sum", ""] == pytest.approx(parts[2])
    assert new["request_time_per_output_token_seconds_sum", ""] == pytest.approx(parts[2] / 3)


def test_who_finds_the_queue_full_is_told_to_come_back(narrow: Server) -> None:
    """One that the next step has room for, one that waits, and more."""
    before = samples(narrow)
    waiting = [threading.Thread(target=narrow.post, args=("/v1/completions", SHORT)) for _ in "ab"]
    assert narrow.post("/admin/pause", {}).status_code == 200
    for thread in waiting:
        thread.start()
    until(lambda: narrow.get("/load").json()["waiting"] == 2, 5)

    for stream in (True, False):
        refused = narrow.post("/v1/completions", {**SHORT, "stream": stream})
        assert refused.status_code == 429
        assert refused.headers["retry-after"] == "1"
        assert refused.json()["error"]["code"] == "too_many_waiting"
    time.sleep(0.3)
    assert narrow.post("/admin/resume", {}).status_code == 200
    for thread in waiting:
        thread.join(10)

    new = {key: value - before.get(key, 0.0) for key, value in samples(narrow).items()}
    assert new["request_queue_time_seconds_sum", ""] > 2 * 0.3
    assert new["request_success_total", "length"] == 2
    assert new["request_success_total", "error"] == 2
    assert narrow.get("/load").json() == {"running": 0, "waiting": 0, "kv_cache_usage": 0}


def test_a_prompt_beyond_the_limit_is_refused(narrow: Server) -> None:
    refused = narrow.post("/v1/completions", {**SHORT, "prompt": [5] * 101})

    assert refused.status_code == 400
    assert "100 are allowed" in refused.json()["error"]["message"]
    assert narrow.post("/v1/completions", {**SHORT, "prompt": [5] * 100}).status_code == 200


def test_answers_are_counted_by_path_and_not_by_what_clients_make_up(narrow: Server) -> None:
    for path in ("/v1/models/v1", "/v1/models/m", "/x/1", "/x/2", "/ui/x.js"):
        assert narrow.get(path).status_code == 404

    text = narrow.get("/metrics").text
    counted = {
        (s.labels["handler"], s.labels["status"]): s.value
        for family in text_string_to_metric_families(text)
        for s in family.samples
        if s.name == "allmetal:http_requests_total"
    }
    assert counted["/v1/models/{name}", "404"] == 2
    assert counted["none", "404"] == 2
    assert counted["/ui/{path}", "404"] == 1
    assert not any("/x" in handler for handler, _ in counted)


def test_json_lines_are_json_and_have_the_figures(narrow: Server) -> None:
    narrow.post("/v1/completions", SHORT, headers={**narrow.headers, "x-request-id": "order-66"})
    until(lambda: "order-66" in narrow.log, 5)

    lines = [json.loads(line) for line in narrow.log.splitlines()]
    assert lines[0]["message"] == "serving"
    [line] = [line for line in lines if line.get("request_id") == "order-66"]
    assert line["level"] == "info"
    assert (line["prompt_tokens"], line["output_tokens"]) == (9, 4)
    assert line["finish_reason"] == "length"
    assert 0 < line["queue_s"] < line["ttft_s"] < line["e2e_s"]


class Collector:
    """An OpenTelemetry collector: takes spans over HTTP."""

    def __init__(self) -> None:
        self.spans: list[Any] = []

        class Handler(BaseHTTPRequestHandler):
            def do_POST(handler) -> None:
                body = handler.rfile.read(int(handler.headers["content-length"]))
                sent = ExportTraceServiceRequest.FromString(body)
                self.resources = [each.resource for each in sent.resource_spans]
                for resource in sent.resource_spans:
                    self.spans += [s for scope in resource.scope_spans for s in scope.spans]
                handler.send_response(200)
                handler.end_headers()

            def log_message(self, *_: object) -> None:
                """Not here."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_port}/v1/traces"


def plain(attributes: Any) -> dict[str, Any]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in attributes}


def test_each_request_is_a_span_under_its_callers(tiny_llama: Path) -> None:
    collector = Collector()
    trace, parent = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
    with Server(tiny_llama, "--otlp-endpoint", collector.url) as server:
        headers = {"traceparent": f"00-{trace}-{parent}-01", "x-request-id": "order-66"}
        httpx.post(f"{server.url}/v1/completions", json=SHORT, headers=headers, timeout=30)
        server.post("/v1/completions", {**SHORT, "prompt": [10**6]})
    collector.server.shutdown()

    good, bad = sorted(collector.spans, key=lambda span: span.start_time_unix_nano)
    assert plain(collector.resources[0].attributes)["service.name"] == "allmetal"
    assert (good.trace_id.hex(), good.parent_span_id.hex()) == (trace, parent)
    attributes = plain(good.attributes)
    assert attributes["gen_ai.request.model"] == NAME
    assert attributes["gen_ai.usage.input_tokens"] == 9
    assert attributes["gen_ai.usage.output_tokens"] == 4
    assert attributes["http.request.header.x-request-id"] == "order-66"
    took_s = (good.end_time_unix_nano - good.start_time_unix_nano) / 1e9
    assert took_s == pytest.approx(attributes["gen_ai.latency.e2e"], abs=1e-6)
    assert abs(good.start_time_unix_nano / 1e9 - time.time()) < 60
    assert bad.parent_span_id == b""
    assert "vocabulary" in bad.status.message


@contextmanager
def serving(model: Path, *flags: str, stderr: Any) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """A server whose standard error is no help."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "allmetal", "serve", str(model), *FLAGS, *flags]
    process = subprocess.Popen([*command, "--port", str(port)], stderr=stderr, stdout=stderr)
    url = f"http://127.0.0.1:{port}"
    try:
        until(lambda: answers(url), 60)
        yield process, url
    finally:
        process.kill()
        process.wait()


def answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/ready").status_code == 200
    except httpx.TransportError:
        return False


def test_a_full_disk_for_logs_stops_nothing(tiny_llama: Path) -> None:
    with (
        open("/dev/full", "wb") as full,
        serving(tiny_llama, "--log-requests", stderr=full) as (process, url),
    ):
        for _ in range(20):
            assert httpx.post(f"{url}/v1/completions", json=SHORT).status_code == 200
        assert httpx.post(f"{url}/v1/completions", json={}).status_code == 400
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0


def test_a_log_that_nobody_reads_stops_nothing(tiny_llama: Path) -> None:
    flags = ["--log-requests", "--log-format", "json"]
    reading, writing = os.pipe()
    fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 4096)
    with serving(tiny_llama, *flags, stderr=writing) as (process, url), httpx.Client() as client:
        for _ in range(60):  # some 200 bytes each
            assert client.post(f"{url}/v1/completions", json=SHORT).status_code == 200
        assert len(os.read(reading, 9999)) > 4096 - 400  # it was full; read once, never again
        for _ in range(60):
            assert client.post(f"{url}/v1/completions", json=SHORT).status_code == 200
        process.send_signal(signal.SIGTERM)
        assert process.wait(15) == 0
    os.close(reading)
    os.close(writing)


def test_a_collector_that_is_not_there_stops_nothing(start: Start) -> None:
    server = start("--otlp-endpoint", "http://127.0.0.1:9/v1/traces")
    assert server.post("/v1/completions", SHORT).status_code == 200

    server.process.send_signal(signal.SIGTERM)
    assert server.wait(15) == 0
