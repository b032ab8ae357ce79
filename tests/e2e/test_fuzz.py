"""Bodies that nobody thought of: an answer to each, no crash, nothing left behind."""

from __future__ import annotations

import asyncio
import gc
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode
from servers import NAME, Server, until

MESSAGES = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": None}]
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
VALID: dict[str, dict[str, Any]] = {
    "/v1/completions": {
        "model": NAME,
        "prompt": "hello",
        "max_tokens": 3,
        "n": 2,
        "stop": ["x"],
        "logprobs": 2,
        "echo": True,
        "logit_bias": {"5": 1.5},
        "stream": True,
        "stream_options": {"include_usage": True},
        "seed": 7,
        "prompt_logprobs": 1,
    },
    "/v1/chat/completions": {
        "messages": MESSAGES,
        "max_completion_tokens": 3,
        "top_logprobs": 3,
        "logprobs": True,
        "temperature": 0.5,
        "tools": [TOOL],
        "response_format": {"type": "text"},
        "bad_words": ["a b"],
        "allowed_token_ids": [5, 6, 7],
    },
    "/v1/messages": {"model": NAME, "max_tokens": 3, "messages": MESSAGES[:1], "system": "s"},
    "/v1/responses": {"input": "hello", "max_output_tokens": 3, "store": False},
    "/tokenize": {"prompt": "hello", "return_token_strs": True},
    "/detokenize": {"tokens": [5, 6, 7]},
}
ODD: list[Any] = [None, True, 0, -1, 1, 2**31, 2**63, -(2**63) - 1, 10**400, 1e308, -0.0, 0.5, ""]
ODD += ["\x00", "é" * 300, "\ud800", [], {}, [[]], [None], {"": {}}, ["x"] * 500, [[5] * 300]]
ODD += [{"type": "json_schema", "json_schema": {"schema": {"type": "nothing"}}}, "auto", "-1"]
NUMBER = 10_000
CONNECTIONS = 16


@pytest.fixture(scope="module")
def bounded(tiny_llama: Path) -> Iterator[Server]:
    """Requests cannot be long, so that many of them fit into a test."""
    flags = ["--platform", "null", "--max-model-len", "64", "--max-sequences-per-request", "16"]
    with Server(tiny_llama, *flags, "--structured-timeout", "1") as running:
        yield running


def mutated(value: Any, rng: random.Random) -> Any:
    """Something in `value`, or all of it, made odd."""
    if isinstance(value, dict) and value and rng.random() < 0.8:
        key = rng.choice([*value, *value, rng.choice(["suffix", "user", "tempreature", ""])])
        rest = {k: v for k, v in value.items() if k != key}
        return rest if rng.random() < 0.2 else {**rest, key: mutated(value.get(key), rng)}
    if isinstance(value, list) and value and rng.random() < 0.7:
        at = rng.randrange(len(value))
        return [*value[:at], mutated(value[at], rng), *value[at + rng.randrange(2) :]]
    return rng.choice(ODD)


def body(rng: random.Random) -> tuple[str, bytes]:
    path = rng.choice([*VALID])
    value: Any = VALID[path]
    for _ in range(rng.randrange(4)):
        value = mutated(value, rng)
    data = json.dumps(value, allow_nan=True).encode()
    kind = rng.random()
    if kind < 0.1:
        return path, data[: rng.randrange(len(data) + 1)]
    if kind < 0.15:
        return path, rng.randbytes(rng.randrange(200))
    if kind < 0.2:
        at = rng.randrange(len(data))
        return path, data[:at] + rng.randbytes(1) + data[at + 1 :]
    if kind < 0.21:
        return path, b"[" * 5000 + data
    return path, data


async def send(url: str, number: int, seed: int) -> dict[int, int]:
    """How many answers of each status there were.  Some clients leave before theirs."""
    statuses: dict[int, int] = {}
    rng = random.Random(seed)

    async def worker(session: aiohttp.ClientSession, share: int) -> None:
        for _ in range(share):
            path, data = body(rng)
            impatient = rng.random() < 0.05
            timeout = aiohttp.ClientTimeout(total=0.003 if impatient else 30)
            try:
                async with session.post(url + path, data=data, timeout=timeout) as answer:
                    text = await answer.read()
                    assert answer.status < 500, (path, data, text)
                    statuses[answer.status] = statuses.get(answer.status, 0) + 1
            except TimeoutError:
                assert impatient, (path, data)

    async with aiohttp.ClientSession() as session:
        share = number // CONNECTIONS
        await asyncio.gather(*(worker(session, share) for _ in range(CONNECTIONS)))
    return statuses


def memory(server: Server) -> dict[str, float]:
    """MiB of the server and of the engine, and the files that the server has open."""
    http = psutil.Process(server.process.pid)
    return {
        "server": http.memory_info().rss / 2**20,
        "engine": server.engine.memory_info().rss / 2**20,
        "files": float(http.num_fds()),
    }


@pytest.mark.slow
def test_ten_thousand_odd_bodies_leave_everything_as_it_was(bounded: Server) -> None:
    idle = {"running": 0, "waiting": 0, "kv_cache_usage": 0.0}
    asyncio.run(send(bounded.url, NUMBER // 8, seed=1))  # what is made once is made
    before = memory(bounded)

    statuses = asyncio.run(send(bounded.url, NUMBER, seed=2))

    assert statuses[200] > NUMBER / 20
    assert statuses[400] > NUMBER / 2
    until(lambda: bounded.get("/load").json() == idle, 10)
    gc.collect()
    after = memory(bounded)
    assert after["server"] - before["server"] < 16, (before, after)
    assert after["engine"] - before["engine"] < 16, (before, after)
    until(lambda: memory(bounded)["files"] <= before["files"] + 2, 10)
    assert "Traceback" not in bounded.log


# Not generated from the document: pages, and what ends the server's service.
SKIPPED = ("/ui", "/admin", "/v1/matrix")


@pytest.mark.slow
def test_nothing_that_the_openapi_document_allows_or_forbids_is_an_error_of_ours(
    bounded: Server,
) -> None:
    schema = schemathesis.openapi.from_url(f"{bounded.url}/openapi.json")
    seen = set()
    for found in schema.get_all_operations():
        operation = found.ok()
        if operation.path.startswith(SKIPPED):
            continue
        seen.add(operation.path)
        modes = [GenerationMode.POSITIVE, GenerationMode.NEGATIVE]
        for mode in modes if operation.body else modes[:1]:

            @settings(
                max_examples=30,
                deadline=None,
                database=None,
                derandomize=True,
                suppress_health_check=list(HealthCheck),
            )
            @given(case=operation.as_strategy(generation_mode=mode))
            def answers(case: schemathesis.Case) -> None:
                assert case.call(timeout=30).status_code < 500

            answers()

    assert seen >= {*VALID, "/v1/models/{name}", "/metrics", "/load"}
    assert bounded.get("/ready").status_code == 200
    assert "Traceback" not in bounded.log
