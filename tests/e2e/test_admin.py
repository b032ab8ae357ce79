"""The admin API, over real sockets on a real engine behind two processes that speak HTTP."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import openai
import psutil
import pytest
from servers import NAME, Server, until

KEY = "s3cret"
PROMPT = "Once upon a time"


@pytest.fixture(scope="module")
def served(tiny_llama: Path) -> Iterator[Server]:
    with Server(tiny_llama, "--admin", "--api-key", KEY, "--api-processes", "2") as running:
        yield running


@pytest.fixture
def admin(served: Server) -> Iterator[httpx.Client]:
    headers = {"authorization": f"Bearer {KEY}"}
    with httpx.Client(base_url=f"{served.url}/admin", headers=headers, timeout=60) as client:
        yield client
        client.post("/wake").raise_for_status()
        client.post("/resume").raise_for_status()


@pytest.fixture
def client(served: Server) -> openai.OpenAI:
    return served.client(api_key=KEY)


def completion(client: openai.OpenAI, max_tokens: int = 24, **body: Any) -> Any:
    extra = {"ignore_eos": True}
    return client.completions.create(
        model=NAME,
        prompt=PROMPT,
        max_tokens=max_tokens,
        temperature=0,
        extra_body=extra,
        **body,
    )


def in_background(call: Callable[[], Any]) -> Future[Any]:
    pool = ThreadPoolExecutor(1)
    future = pool.submit(call)
    pool.shutdown(wait=False)
    return future


def state(admin: httpx.Client) -> dict[str, Any]:
    answer: dict[str, Any] = admin.get("/state").raise_for_status().json()
    return answer


def test_without_the_key_or_the_flag_there_is_no_admin(served: Server, server: Server) -> None:
    assert 401 == served.post("/admin/pause", {}).status_code
    assert 401 == served.get("/admin/state").status_code
    for path in ("/admin/pause", "/admin/abort", "/v1/load_lora_adapter"):
        off = server.post(path, {})
        assert 404 == off.status_code
        assert "--admin" in off.json()["error"]["hint"]


def test_admin_is_not_opened_without_a_key(tiny_llama: Path) -> None:
    refused = Server(tiny_llama, "--admin", wait=False)

    assert 2 == refused.wait(60)
    assert "the admin API needs an API key" in refused.log


def test_a_pause_makes_new_work_wait_and_a_resume_lets_it_go(
    admin: httpx.Client, client: openai.OpenAI, served: Server
) -> None:
    expected = completion(client).choices[0].text
    assert admin.post("/pause").json()["paused"]
    assert 503 == served.get("/ready").status_code
    assert 200 == served.get("/health").status_code

    waiting = in_background(lambda: completion(client))
    until(lambda: state(admin)["num_waiting"] == 1, 20)
    assert not waiting.done()
    assert not admin.post("/resume").json()["paused"]

    assert expected == waiting.result(20).choices[0].text
    assert 200 == served.get("/ready").status_code


@pytest.mark.parametrize("level", [1, 2])
def test_sleep_loses_nothing(
    admin: httpx.Client, client: openai.OpenAI, served: Server, level: int
) -> None:
    expected = completion(client, 200).choices[0].text
    begun = threading.Event()

    def read() -> str:
        text = ""
        for chunk in completion(client, 200, stream=True):
            text += chunk.choices[0].text
            begun.set()
        return text

    reading = in_background(read)
    assert begun.wait(20)
    asleep = admin.post("/sleep", json={"level": level}).raise_for_status().json()
    assert (level, True) == (asleep["sleep_level"], asleep["paused"])
    conflict = admin.post("/resume")
    assert (400, "the engine sleeps") == (
        conflict.status_code,
        conflict.json()["error"]["message"],
    )
    admin.post("/wake").raise_for_status()

    assert expected == reading.result(60)


@pytest.mark.parametrize("level", [1, 2])
def test_sleep_gives_memory_of_the_engines_process_back(
    admin: httpx.Client, client: openai.OpenAI, served: Server, level: int
) -> None:
    engine = psutil.Process(served.engine.pid)
    prompts: list[str] = [f"{index} {PROMPT * 100}" for index in range(40)]
    client.completions.create(model=NAME, prompt=prompts, max_tokens=2)
    before = engine.memory_info().rss

    admin.post("/sleep", json={"level": level}).raise_for_status()

    freed = before - engine.memory_info().rss
    assert freed > 4 << 20, f"{freed / 2**20:.1f} MiB of a cache of 16"


def test_abort_ends_streams_of_one_request_or_all(
    admin: httpx.Client, client: openai.OpenAI
) -> None:
    def read(seen: dict[str, Any]) -> str:
        for chunk in completion(client, 3000, stream=True):
            seen["id"] = chunk.id
            reason = chunk.choices[0].finish_reason
        return str(reason)

    first: dict[str, Any] = {}
    second: dict[str, Any] = {}
    one, two = in_background(lambda: read(first)), in_background(lambda: read(second))
    until(lambda: "id" in first and "id" in second, 20)

    assert {"aborted": 1} == admin.post("/abort", json={"request_id": first["id"]}).json()
    assert "abort" == one.result(20)
    assert not two.done()
    assert {"aborted": 1} == admin.post("/abort", json={"all": True}).json()
    assert "abort" == two.result(20)
    assert {"aborted": 0} == admin.post("/abort", json={"all": True}).json()


def test_an_aborted_answer_is_an_error_where_the_api_has_no_word_for_it(
    admin: httpx.Client, served: Server
) -> None:
    story = [{"role": "user", "content": "Tell me a story."}]  # greedy: one without an end
    long = {"max_tokens": 3000, "messages": story, "temperature": 0}
    bodies: list[tuple[str, dict[str, Any]]] = [
        ("/v1/messages", long),
        ("/v1/responses", {"max_output_tokens": 3000, "input": "Hi", "ignore_eos": True}),
    ]
    headers = {"x-api-key": KEY}
    for path, body in bodies:
        for stream in (False, True):
            asked = {"model": NAME, **body, "stream": stream}
            answer = in_background(lambda p=path, a=asked: served.post(p, a, headers=headers))  # type: ignore[misc]
            until(lambda: state(admin)["num_running"] == 1, 20)
            admin.post("/abort", json={"all": True}).raise_for_status()
            got: httpx.Response = answer.result(20)
            assert (200 if stream else 503) == got.status_code
            assert "the request was aborted" in got.text


def test_a_drain_refuses_what_is_new_and_waits_for_the_rest(
    admin: httpx.Client, client: openai.OpenAI, served: Server
) -> None:
    running = in_background(lambda: completion(client, 400))
    until(lambda: state(admin)["num_running"] == 1, 20)
    too_soon = admin.post("/drain", json={"timeout": 0}).json()
    assert (True, False) == (too_soon["draining"], too_soon["drained"])
    with pytest.raises(openai.InternalServerError, match="no new requests") as refused:
        completion(client)
    assert 503 == refused.value.status_code
    assert refused.value.response.headers["retry-after"]
    assert 503 == served.get("/ready").status_code

    assert admin.post("/drain", json={"timeout": 60}).json()["drained"]
    assert 400 == running.result(1).usage.completion_tokens
    admin.post("/resume").raise_for_status()
    assert completion(client).choices[0].text


def test_the_prefix_cache_can_be_emptied(admin: httpx.Client, client: openai.OpenAI) -> None:
    def cached() -> int:
        usage = client.completions.create(model=NAME, prompt=PROMPT * 20, max_tokens=1).usage
        return usage.prompt_tokens_details.cached_tokens  # type: ignore[union-attr,return-value]

    cached()
    assert cached() > 0
    admin.post("/reset_prefix_cache").raise_for_status()
    assert 0 == cached()


@pytest.mark.parametrize("path", ["load_lora_adapter", "unload_lora_adapter"])
def test_lora_is_answered_with_why_not_and_what_to_do(served: Server, path: str) -> None:
    headers = {"authorization": f"Bearer {KEY}"}
    answer = served.post(f"/v1/{path}", {"lora_name": "a", "lora_path": "b"}, headers=headers)

    assert 501 == answer.status_code
    assert "LoRA" in answer.json()["error"]["message"]
    assert "merge" in answer.json()["error"]["hint"]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("sleep", {"level": 3}),
        ("sleep", {"level": "deep"}),
        ("sleep", {"level": 2**70}),
        ("abort", {}),
        ("abort", {"request_id": "a", "all": True}),
        ("drain", {"timeout": -1}),
        ("drain", {"timeout": 1e9}),
        ("drain", {"timout": 1}),
    ],
)
def test_what_is_wrong_is_said(admin: httpx.Client, path: str, body: object) -> None:
    answer = admin.post(f"/{path}", json=body)

    assert 400 == answer.status_code, answer.text
    assert not state(admin)["paused"]


def test_several_api_processes_keep_no_responses_and_say_so(client: openai.OpenAI) -> None:
    for kept in ({"store": True}, {"background": True}, {"previous_response_id": "resp_x"}):
        body: dict[str, Any] = {"model": NAME, "input": "Hi", "max_output_tokens": 2, **kept}
        with pytest.raises(openai.BadRequestError, match="keeps no responses: several processes"):
            client.responses.create(**body)
    plain = client.responses.create(model=NAME, input="Hi", max_output_tokens=2)
    assert plain.output_text
