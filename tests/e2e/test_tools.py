"""Tools, reasoning and formats through the openai client, on a model that recites."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import jsonschema
import openai
import pytest
from reciting import make_reciting_llama
from servers import NAME, Server

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
TIME = {
    "type": "function",
    "function": {"name": "get_time", "parameters": {"type": "object", "properties": {}}},
}
TOOLS = [WEATHER, TIME]
# The parts of Qwen3's template by which its family is known, and marks that choose a recital.
TEMPLATE = (
    "{{ bos_token }}{% if tools %}# Tools\n{{ tools | tojson }}\n<tool_call>\n"
    '{"name": .., "arguments": ..}\n</tool_call>{% endif %}'
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}"
    "{% for call in m.tool_calls or [] %}<tool_call>\n{{ call.function.name }} "
    "{{ call.function.arguments.city }}\n</tool_call>{% endfor %}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|{{ messages[-1].content }}|>"
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}"
    "{% endif %}"
)
RECITALS = {
    "<|call|>": [
        "<thi", "nk>\nThe city", " is Ulm.", "\n</thi", "nk>", "\n\n", "I will", " look.", "\n",
        "<tool_call>", '\n{"name": "get', '_weather", "argu', 'ments": ', '{"city"', ': "Ul',
        'm", "days"', ": 3}", "}\n</tool", "_call>", "\n<tool_", 'call>\n{"name": "get_time"',
        ', "arguments": {}}', "\n</tool_call>",
    ],
    "<|plain|>": ["It rains", " in", " Ulm", "."],
    "<|ponder|>": ["<think>", "\na", "b", "c", "d", "e", "f", "g", "</think>", "At last."],
}  # fmt: skip


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    model = tmp_path_factory.mktemp("reciting")
    make_reciting_llama(model, RECITALS, TEMPLATE)
    with Server(model) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: Server) -> openai.OpenAI:
    return server.client()


def chat(client: openai.OpenAI, mark: str, **body: Any) -> Any:
    settings = {"max_tokens": 100, "temperature": 0, **body}
    messages = settings.pop("messages", [{"role": "user", "content": mark}])
    return client.chat.completions.create(model=NAME, messages=messages, **settings)


def streamed(client: openai.OpenAI, mark: str, **body: Any) -> dict[str, Any]:
    """A stream put together as its clients do."""
    made: dict[str, Any] = {"content": "", "reasoning": "", "calls": {}, "end": None, "logprobs": 0}
    for chunk in chat(client, mark, stream=True, **body):
        [choice] = chunk.choices
        made["content"] += choice.delta.content or ""
        made["reasoning"] += getattr(choice.delta, "reasoning_content", None) or ""
        made["logprobs"] += len(choice.logprobs.content) if choice.logprobs else 0
        for part in choice.delta.tool_calls or []:
            if part.id:
                assert part.function.name
                made["calls"][part.index] = [part.id, part.function.name, ""]
            made["calls"][part.index][2] += part.function.arguments or ""
        made["end"] = choice.finish_reason or made["end"]
    return made


def test_a_model_that_calls_tools_is_read(client: openai.OpenAI) -> None:
    [choice] = chat(client, "call", tools=TOOLS).choices
    message = choice.message

    assert "tool_calls" == choice.finish_reason
    assert "I will look." == message.content
    assert "The city is Ulm." == message.reasoning_content
    calls = [(c.function.name, json.loads(c.function.arguments)) for c in message.tool_calls]
    assert [("get_weather", {"city": "Ulm", "days": 3}), ("get_time", {})] == calls
    assert 2 == len({c.id for c in message.tool_calls})


def test_streaming_says_the_same(client: openai.OpenAI) -> None:
    whole = chat(client, "call", tools=TOOLS, logprobs=True).choices[0]
    made = streamed(client, "call", tools=TOOLS, logprobs=True)

    assert whole.message.content == made["content"]
    assert whole.message.reasoning_content == made["reasoning"]
    assert [(c.function.name, c.function.arguments) for c in whole.message.tool_calls] == [
        (name, arguments) for _, name, arguments in made["calls"].values()
    ]
    assert "tool_calls" == made["end"]
    assert len(whole.logprobs.content) == made["logprobs"] == len(RECITALS["<|call|>"]) + 1


def test_arguments_come_in_pieces(client: openai.OpenAI) -> None:
    pieces = [
        part.function.arguments
        for chunk in chat(client, "call", tools=TOOLS, stream=True)
        for part in chunk.choices[0].delta.tool_calls or []
        if part.index == 0
    ]
    assert len(pieces) > 3


def test_parallel_calls_can_be_had_one_at_a_time(client: openai.OpenAI) -> None:
    body = {"tools": TOOLS, "parallel_tool_calls": False}

    assert 1 == len(chat(client, "call", **body).choices[0].message.tool_calls)
    assert [0] == list(streamed(client, "call", **body)["calls"])


def test_without_tools_or_with_none_to_choose_a_call_is_text(client: openai.OpenAI) -> None:
    for body in ({}, {"tools": TOOLS, "tool_choice": "none"}):
        [choice] = chat(client, "call", **body).choices
        assert choice.message.tool_calls is None
        assert '<tool_call>\n{"name": "get_weather"' in choice.message.content
        assert "stop" == choice.finish_reason


def test_a_plain_answer_stays_plain(client: openai.OpenAI) -> None:
    [choice] = chat(client, "plain", tools=TOOLS).choices

    assert ("It rains in Ulm.", "stop") == (choice.message.content, choice.finish_reason)
    assert choice.message.tool_calls is None


@pytest.mark.parametrize(
    ("choice", "names"),
    [
        ("required", {"get_weather", "get_time"}),
        ({"type": "function", "function": {"name": "get_weather"}}, {"get_weather"}),
    ],
)
@pytest.mark.parametrize("parallel", [True, False])
def test_a_call_that_is_demanded_comes(
    client: openai.OpenAI, choice: Any, names: set[str], parallel: bool
) -> None:
    body = {
        "tools": TOOLS,
        "tool_choice": choice,
        "parallel_tool_calls": parallel,
        "temperature": 1.0,
        "max_tokens": 400,
        "extra_body": {"repetition_penalty": 1.3},
    }
    complete = 0
    for seed in range(4):
        [made] = chat(client, "plain", seed=seed, **body).choices
        calls = made.message.tool_calls or []
        if made.finish_reason == "length":
            continue
        complete += 1
        assert "tool_calls" == made.finish_reason
        assert {c.function.name for c in calls} <= names
        assert parallel or len(calls) == 1
        for each in calls:
            tool = next(t for t in TOOLS if t["function"]["name"] == each.function.name)  # type: ignore[index]
            jsonschema.validate(json.loads(each.function.arguments), tool["function"]["parameters"])  # type: ignore[index]
    assert complete


def test_a_conversation_goes_on_with_what_tools_said(client: openai.OpenAI) -> None:
    call = {
        "id": "call_1",
        "type": "function",
        "function": {"name": "get_weather", "arguments": '{"city": "Ulm"}'},
    }
    messages = [
        {"role": "user", "content": "call"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "plain"},
    ]
    answer = chat(client, "", messages=messages, tools=TOOLS)

    assert "It rains in Ulm." == answer.choices[0].message.content


def test_thoughts_are_told_apart_and_bounded(client: openai.OpenAI) -> None:
    free = chat(client, "ponder").choices[0].message
    assert ("abcdefg", "At last.") == (free.reasoning_content, free.content)
    budget = {"thinking_token_budget": 3}
    bounded = chat(client, "ponder", extra_body=budget).choices[0].message

    assert ("abc", "At last.") == (bounded.reasoning_content, bounded.content)
    assert "abc" == streamed(client, "ponder", extra_body=budget)["reasoning"]


def test_no_thoughts_can_be_asked_for(client: openai.OpenAI) -> None:
    message = chat(client, "ponder", reasoning_effort="none").choices[0].message

    assert "reasoning_content" not in (message.model_extra or {})


def test_a_format_holds_after_free_thoughts(client: openai.OpenAI) -> None:
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
    form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
    message = chat(client, "ponder", response_format=form, max_tokens=400).choices[0].message

    assert "abcdefg" == message.reasoning_content
    jsonschema.validate(json.loads(message.content), schema)


def test_reasoning_can_be_left_in_the_text(client: openai.OpenAI) -> None:
    [choice] = chat(client, "ponder", extra_body={"include_reasoning": False}).choices

    assert "<think>\nabcdefg</think>At last." == choice.message.content


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        ({"tools": [{"type": "browser"}]}, "tools[0] is no function"),
        ({"tools": TOOLS, "tool_choice": "some"}, "tool_choice 'some' is none"),
        ({"tool_choice": "required"}, "there are no tools"),
        ({"tools": [TIME, TIME]}, "two tools are called get_time"),
        (
            {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "x"}}},
            "which is not among the tools",
        ),
        ({"tools": TOOLS, "response_format": {"type": "json_object"}}, "while tools may be called"),
        ({"response_format": {"type": "yaml"}}, "response_format.type is 'yaml'"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}},
            "must be a JSON schema",
        ),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "x", "schema": {"type": "strange"}},
                }
            },
            "json cannot be had",
        ),
    ],
)
def test_what_cannot_be_had_is_refused(
    client: openai.OpenAI, body: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        chat(client, "plain", **body)

    error: Any = caught.value.body
    assert complaint in error["message"]
    assert error.get("hint") or "no tools" in complaint
