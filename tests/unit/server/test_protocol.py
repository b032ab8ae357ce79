from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from allmetal.errors import RequestError
from allmetal.request import SamplingParams
from allmetal.server.bodies import decode
from allmetal.server.conversation import for_template
from allmetal.server.openai.protocol import ChatRequest, CommonRequest, CompletionRequest
from allmetal.server.openai.sampling import for_chat, for_completion

PAGE = Path(__file__).parents[3] / "docs/serving.md"
KINDS = [CompletionRequest, ChatRequest]


def completion(**fields: object) -> CompletionRequest:
    return decode(msgspec.json.encode({"prompt": "x", **fields}), CompletionRequest)


def chat(**fields: object) -> ChatRequest:
    body = {"messages": [{"role": "user", "content": "x"}], **fields}
    return decode(msgspec.json.encode(body), ChatRequest)


@pytest.mark.parametrize("kind", KINDS)
def test_every_field_is_in_the_docs(kind: type[CommonRequest]) -> None:
    named = set(re.findall(r"`(\w+)`", PAGE.read_text()))

    assert set(kind.__struct_fields__) | kind.inert <= named


@pytest.mark.parametrize("kind", KINDS)
def test_null_means_absent(kind: type[CommonRequest]) -> None:
    needed = {"prompt": "x"} if kind is CompletionRequest else {"messages": []}
    nulls = dict.fromkeys({*kind.__struct_fields__, *kind.refused, "unheard_of"} - needed.keys())

    assert decode(msgspec.json.encode({**nulls, **needed}), kind) == decode(
        msgspec.json.encode(needed), kind
    )


def test_a_silent_request_samples_as_the_model_recommends_and_a_loud_one_as_it_says() -> None:
    recommended = {"temperature": 0.6, "top_k": 20}

    assert SamplingParams(temperature=0.6, top_k=20) == for_completion(completion(), recommended)
    assert SamplingParams(temperature=1.0, top_k=0) == for_completion(
        completion(temperature=1, top_k=-1), recommended
    )


def test_lists_and_single_values_become_what_the_engine_takes() -> None:
    params = for_completion(
        completion(stop="a", logit_bias={"7": -1}, stop_token_ids=[3], bad_words=["b"]), {}
    )

    assert params == SamplingParams(
        stop=("a",), logit_bias={7: -1.0}, stop_token_ids=(3,), bad_words=("b",)
    )


def test_a_chat_has_no_limit_unless_it_says_so() -> None:
    assert for_chat(chat(), {}).max_tokens is None
    assert for_chat(chat(max_tokens=3), {}).max_tokens == 3
    assert for_chat(chat(max_completion_tokens=3, max_tokens=3), {}).max_tokens == 3
    with pytest.raises(RequestError, match="differ"):
        for_chat(chat(max_completion_tokens=3, max_tokens=4), {})


def test_logprobs_in_both_shapes() -> None:
    assert for_chat(chat(logprobs=False), {}).logprobs is None
    assert for_chat(chat(logprobs=True), {}).logprobs == 0
    assert for_chat(chat(logprobs=True, top_logprobs=4), {}).logprobs == 4
    assert for_completion(completion(logprobs=4), {}).prompt_logprobs is None
    assert for_completion(completion(logprobs=4, echo=True), {}).prompt_logprobs == 4


def test_messages_keep_what_a_template_may_want() -> None:
    call = {"id": "1", "function": {"name": "f", "arguments": '{"a": 1}'}}
    messages = [
        {"role": "assistant", "content": None, "tool_calls": [call], "reasoning_content": "hm"},
        {"role": "user", "content": [{"type": "text", "text": "a"}], "name": "me"},
        {"role": "tool", "content": "b", "tool_call_id": "1"},
    ]
    function = {"name": "f", "arguments": {"a": 1}}

    assert for_template(messages) == [
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"id": "1", "type": "function", "function": function}],
            "reasoning_content": "hm",
            "reasoning": "hm",
        },
        {"role": "user", "content": "a", "name": "me"},
        messages[2],
    ]


@pytest.mark.parametrize(
    "calls",
    [
        "f",
        [3],
        [{"id": "1"}],
        [{"function": {"name": 3}}],
        [{"function": {"name": "f", "arguments": "{"}}],
        [{"function": {"name": "f", "arguments": "[1]"}}],
    ],
)
def test_calls_that_are_none_are_refused_by_name(calls: object) -> None:
    with pytest.raises(RequestError, match=r"messages\[0\].tool_calls"):
        for_template([{"role": "assistant", "tool_calls": calls}])
