"""Thoughts, words and calls of a model that says them, through all three APIs and their clients."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest
from servers import NAME, Server

CALLS = [{"city": "Köln", "days": 3}, {"city": "Oslo"}]
THOUGHTS, WORDS = "The user wants weather. 🙂", "I check twice."
SCRIPT = f"<think>\n{THOUGHTS}\n</think>\n\n{WORDS}\n" + "\n".join(
    f'<tool_call>\n{{"name": "weather", "arguments": {json.dumps(c, ensure_ascii=False)}}}\n'
    "</tool_call>"
    for c in CALLS
)
TEMPLATE = (
    "{% for m in messages %}<|{{ m.role }}|>"
    "{% if m.reasoning_content %}<think>\n{{ m.reasoning_content }}\n</think>\n\n{% endif %}"
    "{{ m.content }}{% for c in m.tool_calls or [] %}\n<tool_call>\n"
    '{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}\n'
    "</tool_call>{% endfor %}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
PARAMETERS: Any = {"type": "object", "properties": {"city": {"type": "string"}}}
USER: Any = [{"role": "user", "content": "Weather?"}]


@pytest.fixture(scope="module")
def scripted(tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("scripted") / "model"
    shutil.copytree(tiny_llama, folder)
    (folder / "script.txt").write_text(SCRIPT)
    described = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(
        json.dumps({**described, "chat_template": TEMPLATE})
    )
    script = Path(__file__).parents[1] / "support/scripted.py"
    with Server(folder, command=[str(script), str(folder)]) as running:
        yield running


@pytest.fixture
def gpt(scripted: Server) -> openai.OpenAI:
    return scripted.client()


@pytest.fixture
def claude(scripted: Server) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=scripted.url, api_key="none", max_retries=0)


THINKING: Any = {"type": "adaptive"}
CLAUDES_TOOL: Any = {"name": "weather", "input_schema": PARAMETERS}
TOOL: Any = {"type": "function", "name": "weather", "parameters": PARAMETERS}


def check_message(message: Any) -> None:
    kinds = [block.type for block in message.content]
    assert ["thinking", "text", "tool_use", "tool_use"] == kinds
    assert THOUGHTS == message.content[0].thinking.strip()
    assert WORDS == message.content[1].text.strip()
    assert CALLS == [block.input for block in message.content[2:]]
    assert "tool_use" == message.stop_reason
    assert 2 == len({block.id for block in message.content[2:]})


def test_a_message_of_anthropics_has_thoughts_words_and_calls(
    claude: anthropic.Anthropic,
) -> None:
    body: Any = {"model": NAME, "max_tokens": 400, "messages": USER}
    body |= {"tools": [CLAUDES_TOOL], "thinking": THINKING}
    check_message(claude.messages.create(**body))
    with claude.messages.stream(**body) as stream:
        kinds = [event.type for event in stream]
        check_message(stream.get_final_message())

    assert {"thinking", "text", "input_json"} <= set(kinds)


def check_response(response: Any) -> None:
    kinds = [item.type for item in response.output]
    assert ["reasoning", "message", "function_call", "function_call"] == kinds
    assert THOUGHTS == response.output[0].content[0].text.strip()
    assert WORDS == response.output_text.strip()
    assert CALLS == [json.loads(item.arguments) for item in response.output[2:]]
    assert "completed" == response.status
    usage = response.usage
    assert 0 < usage.output_tokens_details.reasoning_tokens < usage.output_tokens


def test_a_response_of_openais_has_reasoning_words_and_calls(gpt: openai.OpenAI) -> None:
    body: Any = {"model": NAME, "input": "Weather?", "tools": [TOOL]}
    check_response(gpt.responses.create(**body))
    with gpt.responses.stream(**body) as stream:
        kinds = {event.type for event in stream}
        check_response(stream.get_final_response())

    assert {
        "response.reasoning_text.delta",
        "response.reasoning_text.done",
        "response.output_text.delta",
        "response.function_call_arguments.delta",
        "response.function_call_arguments.done",
        "response.completed",
    } <= kinds


def test_the_chat_says_the_same(gpt: openai.OpenAI) -> None:
    tool: Any = {"type": "function", "function": {"name": "weather", "parameters": PARAMETERS}}
    answer = gpt.chat.completions.create(model=NAME, messages=USER, tools=[tool])
    message: Any = answer.choices[0].message

    assert THOUGHTS == message.reasoning_content.strip()
    assert WORDS == message.content.strip()
    assert CALLS == [json.loads(call.function.arguments) for call in message.tool_calls]


def test_what_was_said_comes_back_as_the_template_writes_it(
    scripted: Server, gpt: openai.OpenAI, claude: anthropic.Anthropic
) -> None:
    """The prompt of the next turn, by each API: what the model itself had written, and results."""
    response = gpt.responses.create(model=NAME, input="Weather?", tools=[TOOL])
    results: Any = [
        {"type": "function_call_output", "call_id": item.call_id, "output": "Sunny"}
        for item in response.output
        if item.type == "function_call"
    ]
    after = gpt.responses.create(
        model=NAME, input=results, previous_response_id=response.id, tools=[TOOL]
    )

    first: Any = claude.messages.create(
        model=NAME, max_tokens=400, messages=USER, tools=[CLAUDES_TOOL], thinking=THINKING
    )
    blocks = [
        {"type": "tool_result", "tool_use_id": block.id, "content": "Sunny"}
        for block in first.content
        if block.type == "tool_use"
    ]
    conversation: Any = [
        *USER,
        {"role": "assistant", "content": first.content},
        {"role": "user", "content": blocks},
    ]
    counted = claude.messages.count_tokens(
        model=NAME, messages=conversation, tools=[CLAUDES_TOOL]
    ).input_tokens

    calls = [
        {"id": "c", "type": "function", "function": {"name": "weather", "arguments": json.dumps(c)}}
        for c in CALLS
    ]
    said = {"role": "assistant", "content": response.output_text, "tool_calls": calls}
    said["reasoning_content"] = response.output[0].content[0].text  # type: ignore[union-attr,index]
    sunny = [{"role": "tool", "tool_call_id": "c", "content": "Sunny"}] * 2
    expected = scripted.post("/tokenize", {"messages": [*USER, said, *sunny]}).json()["count"]

    assert expected == after.usage.input_tokens  # type: ignore[union-attr]
    assert expected == counted
