"""`allmetal bench serve`: against a server whose latencies are known, and against ours."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from servers import Server, until

from allmetal import cli

PACED = Path(__file__).parents[1] / "support/paced_server.py"
TTFT_MS, GAP_MS = 60, 20


def connections(process: subprocess.Popen[bytes], state: str) -> list[Any]:
    found = psutil.Process(process.pid).net_connections("inet")
    return [connection for connection in found if connection.status == state]


@contextmanager
def paced_server(*, ttft_ms: int, gap_ms: int) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """A server whose tokens come at set times, and its URL."""
    words = [sys.executable, str(PACED), "0", str(ttft_ms), str(gap_ms)]
    process = subprocess.Popen(words, stdin=subprocess.DEVNULL)
    try:
        until(lambda: bool(connections(process, psutil.CONN_LISTEN)), 30)
        port = connections(process, psutil.CONN_LISTEN)[0].laddr.port
        yield f"http://127.0.0.1:{port}", process
    finally:
        process.kill()
        process.wait()


@pytest.fixture(scope="module")
def paced() -> Iterator[str]:
    with paced_server(ttft_ms=TTFT_MS, gap_ms=GAP_MS) as (url, _):
        yield url


def measure(url: str, folder: Path, *words: str) -> dict[str, Any]:
    file = folder / "result.json"
    assert cli.main(["bench", "serve", url, *words, "--json", str(file)]) == 0
    made: dict[str, Any] = json.loads(file.read_text())
    return made


@pytest.mark.parametrize("endpoint", ["completions", "chat"])
def test_known_latencies_are_found(paced: str, tmp_path: Path, endpoint: str) -> None:
    """A busy machine only adds to them.  A chat's opening, which comes at once, is no token."""
    words = ["--requests", "12", "--concurrency", "4", "--output-len", "21", "--warmup", "2"]
    made = measure(paced, tmp_path, *words, "--endpoint", endpoint)
    figures = made["figures"]

    assert made["counts"]["completed"] == 12
    assert made["counts"]["output_tokens"] == 12 * 21
    assert TTFT_MS <= figures["ttft"]["quantiles"][0] < TTFT_MS + 40
    assert GAP_MS - 8 <= figures["tpot"]["median"] < GAP_MS + 15
    assert TTFT_MS + 20 * GAP_MS <= figures["e2e"]["quantiles"][0] < TTFT_MS + 20 * GAP_MS + 100
    assert figures["itl"]["count"] == 12 * 20
    assert figures["output"]["median"] * figures["duration"]["median"] == pytest.approx(252)


def test_an_open_loop_counts_the_wait_for_a_server_that_is_stuck(
    paced: str, tmp_path: Path
) -> None:
    """Requests come every 50 ms, one is open at a time, each takes 100: they queue up here."""
    words = ["--requests", "10", "--output-len", "3", "--rate", "20", "--burstiness", "inf"]
    made = measure(paced, tmp_path, *words, "--concurrency", "1", "--warmup", "0")
    scheduled, sent = made["requests"]["scheduled"], made["requests"]["sent"]
    late = [b - a for a, b in zip(scheduled, sent, strict=True)]

    assert [50.0 * n for n in range(10)] == pytest.approx(scheduled, abs=1e-3)
    assert late[-1] >= 9 * 50 - 10
    assert made["figures"]["ttft"]["max"] >= late[-1] + TTFT_MS


def test_our_server_is_told_of_with_its_plan(
    server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ("generation_tokens_total", "prompt_tokens_total")
    before = [server.metric(name) for name in names]
    words = ["--requests", "20", "--input-len", "48", "--output-len", "8", "--warmup", "0"]
    made = measure(server.url, tmp_path, *words, "--rate", "200", "--goodput", "e2e=60000")
    out = capsys.readouterr().out

    assert made["counts"]["completed"] == made["counts"]["within_limits"] == 20
    generated, taken = (server.metric(n) - b for n, b in zip(names, before, strict=True))
    assert generated == 20 * 8 + 2  # two prompts before them show how the server counts
    assert taken > made["counts"]["input_tokens"] > 20 * 40
    assert made["plan"] == server.get("/v1/platform").json()
    assert made["server"]["version"] == server.get("/version").json()["version"]
    assert made["environment"]["versions"]["allmetal"]
    assert "20 requests done, 0 failed" in out
    assert "(100.0% of requests)" in out


def test_token_ids_of_a_tokenizer_have_exactly_the_length(
    server: Server, tiny_llama: Path, tmp_path: Path
) -> None:
    words = ["--requests", "5", "--input-len", "37", "--output-len", "2", "--warmup", "0"]
    made = measure(server.url, tmp_path, *words, "--tokenizer", str(tiny_llama))

    assert made["requests"]["input_tokens"] == [37] * 5


def test_a_refusal_ends_it_before_it_begins(
    server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["bench", "serve", server.url, "--field", "temprature=1"]) == 1
    assert "there is no parameter temprature" in capsys.readouterr().err


def test_a_server_that_dies_is_counted_not_hidden(capsys: pytest.CaptureFixture[str]) -> None:
    """Its connections break while requests are open."""
    with paced_server(ttft_ms=50, gap_ms=2000) as (url, process):
        words = ["bench", "serve", url, "--requests", "4", "--warmup", "0", "--output-len", "5"]
        with ThreadPoolExecutor(1) as thread:
            code = thread.submit(cli.main, words)
            until(lambda: len(connections(process, psutil.CONN_ESTABLISHED)) == 4, 30)
            process.kill()

            assert code.result(30) == 1
    assert "0 requests done, 4 failed" in capsys.readouterr().out


def test_a_sweep_goes_on_where_it_was(
    paced: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--url", paced, "--vary", "concurrency=2,4", "--requests", "8", "--output-len", "3"]
    command = ["bench", "sweep", str(tmp_path / "s"), *words, "--warmup", "0"]
    page = tmp_path / "page.html"

    assert cli.main(command) == 0
    out, err = capsys.readouterr()
    assert err.count("...") == 2
    first = {file: file.stat().st_mtime_ns for file in (tmp_path / "s").iterdir()}
    (tmp_path / "s" / "concurrency=4.json").unlink()
    assert cli.main([*command, "--html", str(page)]) == 0
    again, err = capsys.readouterr()
    assert err.count("...") == 1
    assert "concurrency=4 ..." in err
    kept = tmp_path / "s" / "concurrency=2.json"
    assert kept.stat().st_mtime_ns == first[kept]
    rates = [float(line.split()[1]) for line in again.splitlines()[1:]]
    assert rates[1] > 1.2 * rates[0]  # twice as many at once, each as quick
    assert out.splitlines()[:2] == again.splitlines()[:2]
    assert "along the sweep" in page.read_text()


def test_a_start_is_timed_to_its_first_token(
    tiny_llama: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "startup.json"
    words = ["--repetitions", "1", "--json", str(file), str(tiny_llama), "--threads", "1"]
    assert cli.main(["bench", "startup", *words, "--kv-cache-memory", "16MiB"]) == 0
    figures = json.loads(file.read_text())["figures"]

    assert 0.3 < figures["listening"]["median"] < figures["first_token"]["median"] < 90
    assert 50 < figures["peak_memory"]["median"] < 4000
    assert "first_token" in capsys.readouterr().out


def test_a_server_that_does_not_start_says_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["bench", "startup", str(tmp_path / "nothing")]) == 1
    assert "nothing" in capsys.readouterr().err
