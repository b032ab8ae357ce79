"""Outputs that keep to a form, over HTTP: random weights at temperature 1, every output valid."""

from __future__ import annotations

import json
import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jsonschema
import openai
import pytest
from servers import NAME, Server

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 130},
        "tags": {"type": "array", "items": {"enum": ["red", "grün"]}, "maxItems": 2},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}


def complete(client: openai.OpenAI, seed: int, **extra: Any) -> str:
    [choice] = client.completions.create(
        model=NAME, prompt="Once", max_tokens=400, temperature=1, seed=seed, extra_body=extra
    ).choices
    assert "stop" == choice.finish_reason, choice
    return choice.text


@pytest.mark.parametrize(
    "extra",
    [
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "a", "schema": SCHEMA},
            }
        },
        {"structured_outputs": {"json": SCHEMA, "disable_any_whitespace": True}},
        {"guided_json": json.dumps(SCHEMA), "guided_decoding_backend": "llguidance"},
    ],
    ids=["response_format", "structured_outputs", "guided"],
)
def test_a_schema_is_kept_to(client: openai.OpenAI, extra: dict[str, Any]) -> None:
    with ThreadPoolExecutor(4) as pool:
        texts = list(pool.map(lambda seed: complete(client, seed, **extra), range(8)))

    assert 8 == len(set(texts))
    for text in texts:
        jsonschema.validate(json.loads(text), SCHEMA)


@pytest.mark.parametrize(
    ("extra", "pattern"),
    [
        ({"guided_regex": "[a-z]{2}-\\d{1,4}"}, "[a-z]{2}-\\d{1,4}"),
        ({"guided_choice": ["yes", "no", "I can't say"]}, "yes|no|I can't say"),
        ({"guided_grammar": 'root ::= "<" root ">" | "x"'}, "(<)*x(>)*"),
        ({"structured_outputs": {"choice": ["a\nb"]}}, "a\nb"),
    ],
)
def test_a_pattern_is_kept_to(client: openai.OpenAI, extra: dict[str, Any], pattern: str) -> None:
    for seed in range(3):
        assert re.fullmatch(pattern, complete(client, seed, **extra))


def test_several_choices_and_a_stream_keep_to_it_too(client: openai.OpenAI) -> None:
    texts = dict.fromkeys(range(3), "")
    stream = client.chat.completions.create(
        model=NAME,
        messages=[{"role": "user", "content": "Hello"}],
        n=3,
        temperature=1,
        seed=1,
        max_tokens=400,
        stream=True,
        logprobs=True,
        response_format={"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}},
    )
    logprobs = 0
    for chunk in stream:
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
            logprobs += len(choice.logprobs.content or []) if choice.logprobs else 0

    for text in texts.values():
        jsonschema.validate(json.loads(text), SCHEMA)
    assert logprobs > 3
    assert 3 == len(set(texts.values()))


def test_free_requests_beside_constrained_ones_say_what_they_would(client: openai.OpenAI) -> None:
    def free(_: int) -> str:
        [choice] = client.completions.create(
            model=NAME, prompt="The quick", max_tokens=40, temperature=0
        ).choices
        return choice.text

    alone = free(0)
    with ThreadPoolExecutor(6) as pool:
        held = [pool.submit(complete, client, n, guided_regex="[a-f]{30}") for n in range(3)]
        beside = list(pool.map(free, range(3)))

    assert [alone] * 3 == beside
    assert all(re.fullmatch("[a-f]{30}", each.result()) for each in held)


@pytest.mark.parametrize(
    ("extra", "complaint"),
    [
        ({"guided_json": {"type": "strange"}}, "json cannot be had"),
        ({"guided_json": {"type": "integer", "not": {"const": 1}}}, "json cannot be had"),
        ({"guided_json": "{"}, "json is not JSON"),
        ({"guided_regex": "("}, "regex is not valid"),
        ({"guided_regex": "a", "guided_choice": ["b"]}, "regex and choice are given"),
        ({"guided_regex": "a", "structured_outputs": {"regex": "b"}}, "more than one form"),
        ({"structured_outputs": {}}, "nothing is asked for"),
        ({"structured_outputs": {"xml": "a"}}, "structured_outputs"),
        ({"guided_choice": []}, "choice must be a list"),
        ({"guided_regex": "a", "min_tokens": 3}, "min_tokens cannot be had"),
        ({"guided_regex": "a", "guided_decoding_backend": "outlines"}, "no provider 'outlines'"),
    ],
)
def test_what_cannot_be_held_to_is_400(
    server: Server, extra: dict[str, Any], complaint: str
) -> None:
    body = {"model": NAME, "prompt": "a", "max_tokens": 8, **extra}
    answers = [server.post("/v1/completions", {**body, "stream": s}) for s in (False, True)]

    for answer in answers:
        assert 400 == answer.status_code, answer.text
        assert complaint in answer.json()["error"]["message"]


def test_nothing_is_left_behind(server: Server, client: openai.OpenAI) -> None:
    complete(client, 3, guided_regex="[a-f]{5}")

    assert 0 == server.metric("num_requests_running")
    assert 0 == server.metric("kv_cache_usage_perc")
