"""Wrong requests get a 4xx that says what is wrong, and the server goes on."""

from __future__ import annotations

from typing import Any

import httpx
import openai
import pytest
from servers import NAME, Server, Start

USER = {"role": "user", "content": "hi"}
COMPLETION: dict[str, Any] = {"model": NAME, "prompt": "hi", "max_tokens": 2}
CHAT: dict[str, Any] = {"model": NAME, "messages": [USER], "max_tokens": 2}

WRONG_COMPLETIONS: list[tuple[dict[str, Any], str]] = [
    ({"prompt": None}, "prompt"),
    ({"prompt": 5}, "prompt"),
    ({"prompt": []}, "prompt must be"),
    ({"prompt": ["a", 5]}, "prompt must be"),
    ({"prompt": [10**30]}, "prompt[0]"),
    ({"prompt": [100_000]}, "vocabulary"),
    ({"prompt": [-1]}, "vocabulary"),
    ({"prompt": [5] * 5000}, "limit of 4096"),
    ({"max_tokens": "x"}, "max_tokens: expected `int"),
    ({"max_tokens": 0}, "max_tokens is 0"),
    ({"max_tokens": -1}, "max_tokens must be at least 1"),
    ({"max_tokens": 10**30}, "max_tokens"),
    ({"temperature": -0.5}, "temperature must be"),
    ({"temperature": "hot"}, "temperature: expected"),
    ({"top_p": 0}, "top_p must be in (0, 1]"),
    ({"top_k": -2}, "top_k"),
    ({"n": 0}, "n must be at least 1"),
    ({"n": 10**9}, "n: expected `int` <= 1024"),
    ({"presence_penalty": 3}, "presence_penalty"),
    ({"logit_bias": {"x": 1}}, "logit_bias"),
    ({"logit_bias": {"100000": 1}}, "vocabulary"),
    ({"logprobs": -1}, "logprobs"),
    ({"logprobs": 100_000}, "logprobs: expected `int` <= 100"),
    ({"stop": [""]}, "stop string must not be empty"),
    ({"stop": 5}, "stop"),
    ({"min_tokens": 5, "max_tokens": 2}, "min_tokens (5) exceeds"),
    ({"temprature": 1}, "there is no parameter temprature"),
    ({"suffix": "x"}, "suffix is not supported"),
    ({"best_of": 3}, "best_of is not supported"),
    ({"response_format": {"type": "yaml"}}, "response_format.type is 'yaml'"),
    ({"stream_options": 5, "stream": True}, "stream_options"),
    ({"seed": 1.5}, "seed"),
    ({"seed": 2**64}, "seed: expected"),
]
WRONG_CHATS: list[tuple[dict[str, Any], str]] = [
    ({"messages": None}, "messages"),
    ({"messages": []}, "messages is empty"),
    ({"messages": "hi"}, "messages: expected `array`"),
    ({"messages": [{"content": "x"}]}, "messages[0].role"),
    ({"messages": [USER, {"role": "user"}]}, "messages[1].content"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "image_url"),
    ({"messages": [{"role": "user", "content": ["x"]}]}, "messages[0].content[0]"),
    ({"tools": [{"type": "function"}]}, "tools[0] is no function"),
    ({"tool_choice": "required"}, "and there are no tools"),
    ({"response_format": {"type": "json_schema"}}, "must be a JSON schema"),
    ({"top_logprobs": 2}, "top_logprobs is given without logprobs"),
    ({"logprobs": 2}, "logprobs: expected `bool"),
    ({"max_completion_tokens": 5}, "differ"),
    ({"chat_template_kwargs": []}, "chat_template_kwargs"),
]


def refused(answer: httpx.Response, status: int, said: str) -> None:
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert said in error["message"]
    assert error["type"] == "invalid_request_error"


@pytest.mark.parametrize(("change", "said"), WRONG_COMPLETIONS)
def test_a_wrong_completion_is_refused(server: Server, change: dict[str, Any], said: str) -> None:
    refused(server.post("/v1/completions", {**COMPLETION, **change}), 400, said)


@pytest.mark.parametrize(("change", "said"), WRONG_COMPLETIONS[:6])
def test_a_wrong_stream_is_refused_with_a_status(
    server: Server, change: dict[str, Any], said: str
) -> None:
    body = {**COMPLETION, "stream": True, **change}
    refused(server.post("/v1/completions", body), 400, said)


@pytest.mark.parametrize(("change", "said"), WRONG_CHATS)
def test_a_wrong_chat_is_refused(server: Server, change: dict[str, Any], said: str) -> None:
    refused(server.post("/v1/chat/completions", {**CHAT, **change}), 400, said)


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"5", b"\xff", b'{"prompt": "x",}', b"[" * 9999]
)
def test_what_is_no_json_object_is_refused(server: Server, body: bytes) -> None:
    refused(httpx.post(f"{server.url}/v1/completions", content=body), 400, "body")


def test_another_model_is_not_found(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="no model 'gpt-x'"):
        client.completions.create(model="gpt-x", prompt="x")
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("gpt-x")


def test_unknown_paths_and_methods(server: Server) -> None:
    refused(server.get("/v1/nothing"), 404, "Not Found")
    refused(server.get("/v1/completions"), 405, "Method Not Allowed")


def test_a_hint_says_what_to_type(server: Server) -> None:
    answer = server.post("/v1/completions", {**COMPLETION, "temprature": 1}).json()

    assert answer["error"]["hint"] == "did you mean temperature?"


def test_one_wrong_prompt_of_many_ends_all_and_frees_them(server: Server) -> None:
    body = {**COMPLETION, "prompt": [[5, 6], [100_000]], "max_tokens": 3000}
    refused(server.post("/v1/completions", body), 400, "vocabulary")

    assert server.metric("num_requests_running") == 0


def test_after_all_that_the_server_serves(client: openai.OpenAI) -> None:
    answer = client.completions.create(model=NAME, prompt="x", max_tokens=2)

    assert answer.choices[0].finish_reason in ("length", "stop")


def test_a_key_is_asked_for_when_one_is_set(start: Start) -> None:
    server = start("--api-key", "s3cret")

    with pytest.raises(openai.AuthenticationError, match="API key"):
        server.client(api_key="guess").models.list()
    assert [m.id for m in server.client(api_key="s3cret").models.list()] == [NAME]
    assert server.get("/health").status_code == 200
