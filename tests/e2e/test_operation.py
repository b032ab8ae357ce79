"""What those who run a server rely on: keys, TLS, CORS, names of requests, limits, silence."""

from __future__ import annotations

import json
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import trustme
from servers import NAME, Server, Start, until

LONG: dict[str, Any] = {"model": NAME, "prompt": "x", "max_tokens": 4000, "temperature": 0}
LONG |= {"ignore_eos": True}
SHORT = {"model": NAME, "prompt": "x", "max_tokens": 2}
ORIGIN = "https://chat.example"


@pytest.fixture(scope="module")
def guarded(tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with all limits that can be met without hurting another test."""
    keys = tmp_path_factory.mktemp("keys") / "keys"
    keys.write_text("# of the team\nfrom-file\n\n  padded  \n")
    flags = ["--api-key", "first", "--api-key", "second", "--api-key-file", str(keys)]
    flags += ["--cors-origin", ORIGIN, "--max-body-bytes", "64KiB", "--request-timeout", "1.5"]
    with Server(tiny_llama, *flags, "--keep-alive", "0.2") as running:
        yield running


KEY = {"authorization": "Bearer first"}


@pytest.mark.parametrize("key", ["first", "second", "from-file", "padded"])
def test_any_of_the_keys_opens(guarded: Server, key: str) -> None:
    assert [m.id for m in guarded.client(api_key=key).models.list()] == [NAME]
    named = httpx.get(f"{guarded.url}/v1/models", headers={"x-api-key": key})
    assert named.status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": "Bearer guess"},
        {"authorization": "first"},
        {"authorization": "Basic first"},
        {"authorization": "Bearer firs"},
        {"authorization": "Bearer first, second"},
        {"authorization": "Bearer # of the team"},
        {"x-api-key": "guess"},
    ],
)
@pytest.mark.parametrize("path", ["/v1/models", "/load", "/nowhere"])
def test_nothing_else_opens(guarded: Server, headers: dict[str, str], path: str) -> None:
    answer = httpx.get(guarded.url + path, headers=headers)

    assert answer.status_code == 401
    assert answer.json()["error"]["code"] == "invalid_api_key"


@pytest.mark.parametrize("path", ["/health", "/ready", "/metrics", "/version"])
def test_those_who_watch_need_no_key(guarded: Server, path: str) -> None:
    assert guarded.get(path).status_code == 200


def test_a_page_of_the_named_origin_may_call(guarded: Server) -> None:
    asks = {"access-control-request-method": "POST", "access-control-request-headers": "x-api-key"}
    before = httpx.options(f"{guarded.url}/v1/models", headers={"origin": ORIGIN, **asks})
    call = httpx.get(f"{guarded.url}/v1/models", headers={"origin": ORIGIN, **KEY})
    refused = httpx.get(f"{guarded.url}/v1/models", headers={"origin": ORIGIN})
    other = httpx.get(f"{guarded.url}/v1/models", headers={"origin": "https://x.example", **KEY})

    assert (before.status_code, call.status_code, refused.status_code) == (200, 200, 401)
    for answer in (before, call, refused):
        assert answer.headers["access-control-allow-origin"] == ORIGIN
    assert "access-control-allow-origin" not in other.headers


def test_without_the_option_no_page_may_call(server: Server) -> None:
    answer = httpx.get(f"{server.url}/v1/models", headers={"origin": ORIGIN})

    assert "access-control-allow-origin" not in answer.headers


def test_a_name_of_a_request_is_kept_and_stands_in_errors(guarded: Server) -> None:
    name = {"x-request-id": "order-66/a"}
    good = httpx.post(f"{guarded.url}/v1/completions", json=SHORT, headers={**KEY, **name})
    wrong = httpx.post(f"{guarded.url}/v1/completions", json={}, headers={**KEY, **name})
    no_key = httpx.get(f"{guarded.url}/v1/models", headers=name)
    nowhere = httpx.get(f"{guarded.url}/v1/nowhere", headers={**KEY, **name})

    for answer in (good, wrong, no_key, nowhere):
        assert answer.headers["x-request-id"] == "order-66/a"
    for answer in (wrong, no_key, nowhere):
        assert answer.json()["error"]["request_id"] == "order-66/a"


@pytest.mark.parametrize("name", ["", "two words", "x" * 129, "\xff"])
def test_a_name_that_does_not_fit_a_log_is_replaced(server: Server, name: str) -> None:
    headers = [(b"x-request-id", name.encode("latin1"))]
    made = [httpx.get(f"{server.url}/health", headers=headers).headers["x-request-id"]]
    made += [httpx.get(f"{server.url}/health").headers["x-request-id"]]

    assert all(len(each) == 32 and each.isalnum() for each in made)
    assert made[0] != made[1]


def too_large(length: int, headers: str) -> bytes:
    return f"POST /v1/completions HTTP/1.1\r\nhost: x\r\n{headers}\r\n\r\n".encode() + b"x" * length


def test_a_body_beyond_the_limit_is_refused_and_not_read(guarded: Server) -> None:
    whole = httpx.post(f"{guarded.url}/v1/completions", content=b" " * 65537, headers=KEY)
    parts = (b" " * 1000 for _ in range(100))
    bit_by_bit = httpx.post(f"{guarded.url}/v1/completions", content=parts, headers=KEY)
    fits = httpx.post(
        f"{guarded.url}/v1/completions",
        content=json.dumps(SHORT).encode().ljust(65536),
        headers=KEY,
    )

    assert (whole.status_code, bit_by_bit.status_code, fits.status_code) == (413, 413, 200)
    assert "--max-body-bytes" in whole.json()["error"]["hint"]


def test_a_body_that_only_claims_to_be_large_is_refused_at_once(guarded: Server) -> None:
    host, port = guarded.url.removeprefix("http://").split(":")
    head = "POST /v1/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer first\r\n"
    with socket.create_connection((host, int(port)), timeout=5) as connection:
        connection.sendall(f"{head}content-length: {10**12}\r\n\r\n".encode())
        assert b" 413 " in connection.recv(100)


@pytest.mark.parametrize("stream", [True, False])
def test_a_request_that_takes_too_long_ends_and_frees_its_blocks(
    tiny_llama: Path, guarded: Server, stream: bool
) -> None:
    begin = time.perf_counter()
    body = {**LONG, "n": 8, "stream": stream}
    answer = httpx.post(f"{guarded.url}/v1/completions", json=body, headers=KEY, timeout=30)

    assert 1.4 < time.perf_counter() - begin < 5
    assert answer.status_code == (200 if stream else 504)
    assert "did not end within 1.5 seconds" in answer.text
    assert "[DONE]" not in answer.text
    until(lambda: guarded.metric("num_requests_running") == 0, 2)


def test_a_silent_stream_says_that_it_is_there(tiny_llama: Path) -> None:
    """Also before its first token: the second request waits for the only slot."""
    with Server(tiny_llama, "--keep-alive", "0.1", "--max-num-seqs", "1") as server:
        first = httpx.Client(timeout=30)
        with first.stream("POST", f"{server.url}/v1/completions", json={**LONG, "stream": True}):
            until(lambda: server.metric("num_requests_running") == 1, 5)
            body = {**SHORT, "stream": True}
            with httpx.stream("POST", f"{server.url}/v1/completions", json=body, timeout=30) as s:
                lines = s.iter_lines()
                assert s.status_code == 200
                comments = [next(lines) for _ in range(4)]
                assert comments == [": still here", ""] * 2
                first.close()
                assert [line for line in lines if line][-1] == "data: [DONE]"
        waits = server.client()
        answer: Any = waits.completions.create(model=NAME, prompt="x", max_tokens=2, stream=True)
        assert [part.choices[0].finish_reason for part in answer][-1] == "length"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with ca.pem, server.pem, server.key, client.pem (with its key)."""
    folder = tmp_path_factory.mktemp("tls")
    ca = trustme.CA()
    ca.cert_pem.write_to_path(folder / "ca.pem")
    server, client = ca.issue_cert("127.0.0.1"), ca.issue_cert("client@example.org")
    for pem in server.cert_chain_pems:
        pem.write_to_path(folder / "server.pem", append=True)
    server.private_key_pem.write_to_path(folder / "server.key")
    client.private_key_and_cert_chain_pem.write_to_path(folder / "client.pem")
    return folder


def test_https_is_served_to_clients_with_a_certificate(tiny_llama: Path, authority: Path) -> None:
    flags = [
        "--tls-cert",
        str(authority / "server.pem"),
        "--tls-key",
        str(authority / "server.key"),
    ]
    with Server(tiny_llama, *flags, "--tls-client-ca", str(authority / "ca.pem")) as server:
        assert server.url.startswith("https://")
        trust = ssl.create_default_context(cafile=str(authority / "ca.pem"))
        with pytest.raises(httpx.TransportError):
            httpx.get(f"{server.url}/health", verify=trust)
        trust.load_cert_chain(authority / "client.pem")
        with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
            httpx.get(f"{server.url}/health")
        with httpx.Client(verify=trust) as http:
            client = server.client(http_client=http)
            answer: Any = client.completions.create(
                model=NAME, prompt="x", max_tokens=3, stream=True
            )
            assert [part.choices[0].finish_reason for part in answer][-1] == "length"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--tls-cert", "x"], "a certificate serves only with its key"),
        (["--tls-cert", "nowhere", "--tls-key", "nowhere"], "cannot serve HTTPS with nowhere"),
        (["--api-key-file", "nowhere"], "cannot read --api-key-file nowhere"),
        (["--api-key", "two words"], "an API key must be"),
        (["--max-body-bytes", "0"], "max_body_bytes must be at least 1"),
        (["--request-timeout", "nan"], "request_timeout must be positive"),
        (["--restart", "-1"], "restart must not be negative"),
    ],
)
def test_what_is_wrong_with_the_options_is_said_before_loading(
    tiny_llama: Path, flags: list[str], message: str
) -> None:
    command = [sys.executable, "-m", "allmetal", "serve", str(tiny_llama), "--port", "0", *flags]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)

    assert done.returncode == 2
    assert done.stderr.startswith(f"error: {message}")


def test_load_tells_what_runs(server: Server) -> None:
    assert server.get("/load").json() == {"running": 0, "waiting": 0, "kv_cache_usage": 0.0}


def test_before_it_stops_it_says_that_it_is_not_ready_and_still_serves(start: Start) -> None:
    server = start("--drain-delay", "1")
    assert server.get("/ready").json() == {"status": "ready"}

    server.process.send_signal(signal.SIGTERM)
    until(lambda: server.get("/ready").status_code == 503, 0.5)
    answer = server.post("/v1/completions", SHORT)

    assert int(server.get("/ready").headers["retry-after"]) > 0
    assert answer.status_code == 200
    assert server.wait(5) == 0
