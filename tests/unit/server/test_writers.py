"""Events of the Responses and Messages APIs, judged by the official clients' own types and their
own code that puts a message together."""

from __future__ import annotations

import json
from typing import Any

import pytest
from anthropic.lib.streaming._messages import accumulate_event
from anthropic.types import Message as AnthropicMessage
from anthropic.types import RawMessageStreamEvent
from openai import omit
from openai.lib.streaming.responses._responses import ResponseStreamState
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from allmetal.parsing import (
    ContentDelta,
    Event,
    Message,
    ReasoningDelta,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
)
from allmetal.request import FinishReason
from allmetal.server.anthropic.events import MessageWriter
from allmetal.server.dialogue import Begun, Ended, Part
from allmetal.server.errors import AbortedError
from allmetal.server.openai.responses.writer import ResponseWriter

OPENAI: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
ANTHROPIC: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)
ARGUMENTS = '{"city": "Köln", "days": 3}'


def call(index: int, *, ends: bool = True, arguments: str = ARGUMENTS) -> list[Event]:
    pieces: list[Event] = [ToolCallStart(index, f"call_{index}", "weather")]
    pieces += [ToolCallArguments(index, arguments[i : i + 7]) for i in range(0, len(arguments), 7)]
    return [*pieces, ToolCallEnd(index)] if ends else pieces


TURNS: dict[str, tuple[list[Event], FinishReason, str | None]] = {
    "text": ([ContentDelta("Hel"), ContentDelta("lo 🙂")], "stop", None),
    "nothing": ([], "stop", None),
    "thoughts and text": (
        [ReasoningDelta("Let me "), ReasoningDelta("see."), ContentDelta("Yes.")],
        "stop",
        None,
    ),
    "thoughts only": ([ReasoningDelta("Let me ")], "length", None),
    "a call": (call(0), "stop", None),
    "all of it": (
        [ReasoningDelta("Hm."), ContentDelta("I ask."), *call(0), *call(1), ContentDelta("Done")],
        "stop",
        None,
    ),
    "a call broken off": (
        [ContentDelta("I ask."), *call(0, ends=False, arguments='{"city": "K')],
        "length",
        None,
    ),
    "cut short": ([ContentDelta("Once upon a")], "length", None),
    "a stop sequence": ([ContentDelta("one two")], "stop", "three"),
}


def parts(name: str, finish: FinishReason | None = None) -> list[Part]:
    events, reason, stop = TURNS[name]
    message = Message()
    message.add(events)
    end = Ended(
        message=message,
        finish_reason=finish or reason,
        stop_reason=stop,
        num_prompt=20,
        num_cached=16,
        num_output=9,
        num_reasoning=4 if message.reasoning else 0,
    )
    return [Begun(num_prompt=20, num_cached=16), *events, end]


def response(status: str = "queued") -> dict[str, Any]:
    return {
        "id": "resp_1",
        "object": "response",
        "created_at": 5,
        "status": status,
        "error": None,
        "incomplete_details": None,
        "model": "m",
        "output": [],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": None,
    }


def written(name: str, **options: Any) -> tuple[ResponseWriter, list[dict[str, Any]]]:
    writer = ResponseWriter(response())
    events = [event for part in parts(name, **options) for event in writer.take(part)]
    return writer, json.loads(json.dumps(events))


@pytest.mark.parametrize("name", TURNS)
def test_openais_client_puts_the_same_response_together(name: str) -> None:
    writer, events = written(name)
    state: Any = ResponseStreamState(input_tools=omit, text_format=omit)

    assert list(range(len(events))) == [event["sequence_number"] for event in events]
    for event in events:
        typed = OPENAI.validate_python(event)
        assert event["type"] == typed.type
        state.handle_event(typed)

    final = events[-1]["response"]
    assert final == json.loads(json.dumps(writer.response))
    assert Response.model_validate(final)
    texts = [i.content[0].text for i in state._output_items.values() if i.type == "message"]
    assert texts == [i["content"][0]["text"] for i in final["output"] if i["type"] == "message"]


@pytest.mark.parametrize("name", TURNS)
def test_a_response_holds_what_was_said_in_its_order(name: str) -> None:
    writer, events = written(name)
    events_of, reason, _ = TURNS[name]
    message = Message()
    message.add(events_of)
    output = writer.response["output"]

    def said(kind: str) -> str:
        return "".join(item["content"][0]["text"] for item in output if item["type"] == kind)

    assert message.content == said("message")
    assert message.reasoning == said("reasoning")
    calls = [item for item in output if item["type"] == "function_call"]
    assert [(c.id, c.name, c.arguments) for c in message.tool_calls] == [
        (item["call_id"], item["name"], item["arguments"]) for item in calls
    ]
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert json.loads(json.dumps(output)) == done
    whole = reason == "stop"
    assert ("completed" if whole else "incomplete") == writer.response["status"]
    if not whole:
        assert {"reason": "max_output_tokens"} == writer.response["incomplete_details"]
        assert "incomplete" == output[-1]["status"]
    usage = writer.response["usage"]
    assert (20, 16, 9, 29) == (
        usage["input_tokens"],
        usage["input_tokens_details"]["cached_tokens"],
        usage["output_tokens"],
        usage["total_tokens"],
    )


def test_a_response_that_fails_or_is_cancelled_keeps_what_there_was() -> None:
    writer = ResponseWriter(response())
    events = [event for part in parts("all of it")[:3] for event in writer.take(part)]
    events += writer.fail(ZeroDivisionError("a secret"))

    assert ["response.failed"] == [e["type"] for e in events[-1:]]
    assert "internal error" == writer.response["error"]["message"]
    assert "failed" == OPENAI.validate_python(events[-1]).response.status
    assert "I ask." == writer.response["output"][-1]["content"][0]["text"]
    assert "incomplete" == writer.response["output"][-1]["status"]

    writer = ResponseWriter(response())
    for part in parts("all of it")[:3]:
        list(writer.take(part))
    writer.cancel()
    assert "cancelled" == Response.model_validate(writer.response).status


def test_an_aborted_turn_is_no_success() -> None:
    for write in (written, messages):
        with pytest.raises(AbortedError):
            write("text", finish="abort")


def messages(name: str, **options: Any) -> tuple[MessageWriter, list[dict[str, Any]]]:
    writer = MessageWriter("msg_1", "m", ["three"])
    events = [event for part in parts(name, **options) for event in writer.take(part)]
    return writer, json.loads(json.dumps(events))


@pytest.mark.parametrize("name", TURNS)
def test_anthropics_client_puts_the_same_message_together(name: str) -> None:
    writer, events = messages(name)
    whole: Any = None
    buffers: dict[int, Any] = {}
    for event in events:
        typed = ANTHROPIC.validate_python(event)
        assert event["type"] == typed.type
        whole = accumulate_event(event=typed, current_snapshot=whole, json_bufs=buffers)

    final = AnthropicMessage.model_validate(json.loads(json.dumps(writer.message)))
    if name != "a call broken off":  # the client reads half an object as far as it goes
        assert final.content == AnthropicMessage.model_validate(whole.model_dump()).content
    assert (final.stop_reason, final.stop_sequence) == (whole.stop_reason, whole.stop_sequence)
    assert final.usage.output_tokens == whole.usage.output_tokens == 9
    assert (4, 16) == (final.usage.input_tokens, final.usage.cache_read_input_tokens)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("text", "end_turn"),
        ("nothing", "end_turn"),
        ("cut short", "max_tokens"),
        ("a call", "tool_use"),
        ("all of it", "tool_use"),
        ("a call broken off", "max_tokens"),
        ("a stop sequence", "stop_sequence"),
    ],
)
def test_a_message_says_why_it_ended(name: str, reason: str) -> None:
    writer, _ = messages(name)

    assert reason == writer.message["stop_reason"]
    assert ("three" if reason == "stop_sequence" else None) == writer.message["stop_sequence"]


def test_a_message_holds_blocks_in_their_order() -> None:
    writer, _ = messages("all of it")

    city = {"city": "Köln", "days": 3}
    assert [
        {"type": "thinking", "thinking": "Hm.", "signature": ""},
        {"type": "text", "text": "I ask."},
        {"type": "tool_use", "id": "call_0", "name": "weather", "input": city},
        {"type": "tool_use", "id": "call_1", "name": "weather", "input": city},
        {"type": "text", "text": "Done"},
    ] == writer.message["content"]
