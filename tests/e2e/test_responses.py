"""OpenAI's Responses API through the official client."""

from __future__ import annotations

import json
from typing import Any, Literal

import httpx
import openai
import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import BaseModel, TypeAdapter
from servers import NAME, Server, until

EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
USER: list[Any] = [{"role": "user", "content": "Tell me a story."}]
PROPERTIES = {"city": {"enum": ["Rome", "Oslo"]}, "days": {"enum": [1, 2]}}
SCHEMA = {
    "type": "object",
    "properties": PROPERTIES,
    "required": ["city", "days"],
    "additionalProperties": False,
}
WEATHER: Any = {"type": "function", "name": "weather", "parameters": SCHEMA, "strict": True}


def respond(client: openai.OpenAI, given: Any = "Tell me a story.", **body: Any) -> Any:
    settings = {"max_output_tokens": 24, "temperature": 0, **body}
    return client.responses.create(model=NAME, input=given, **settings)


def chat(client: openai.OpenAI, messages: list[Any]) -> Any:
    return client.chat.completions.create(
        model=NAME, messages=messages, max_tokens=24, temperature=0
    )


def said(client: openai.OpenAI, messages: list[Any]) -> str:
    text: str = chat(client, messages).choices[0].message.content
    return text


def test_a_response_is_the_chat_of_the_same_words(client: openai.OpenAI) -> None:
    expected = chat(client, [{"role": "system", "content": "Be brief."}, *USER])

    response = respond(client, instructions="Be brief.", metadata={"a": "b"})

    assert expected.choices[0].message.content == response.output_text
    assert ("response", "incomplete", NAME) == (response.object, response.status, response.model)
    assert "max_output_tokens" == response.incomplete_details.reason
    assert {"a": "b"} == response.metadata
    assert expected.usage.prompt_tokens == response.usage.input_tokens
    assert 24 == response.usage.output_tokens
    Response.model_validate(response.model_dump(exclude_unset=True))


def test_input_may_be_items_of_all_kinds(client: openai.OpenAI) -> None:
    items = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "input_text", "text": "Weather?"}]},
        {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "Hm."}]},
        {"type": "message", "role": "assistant", "content": "I look."},
        {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "Sunny"},
        {"role": "user", "content": "So?"},
    ]
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": "I look."},
        {"role": "tool", "tool_call_id": "c1", "content": "Sunny"},
        {"role": "user", "content": "So?"},
    ]
    assert said(client, messages) == respond(client, items).output_text


def test_streaming_says_the_same_as_not_streaming(client: openai.OpenAI) -> None:
    whole = respond(client)
    with client.responses.stream(
        model=NAME, input="Tell me a story.", max_output_tokens=24, temperature=0
    ) as stream:
        kinds, text = [], ""
        for event in stream:
            kinds.append(event.type)
            text += event.delta if event.type == "response.output_text.delta" else ""
        state = stream._state  # type: ignore[attr-defined]
        final = state._completed_response or state

    assert whole.output_text == text
    assert ["response.created", "response.in_progress", "response.output_item.added"] == kinds[:3]
    assert "response.incomplete" == kinds[-1]
    assert final is not None


def test_every_event_is_one_of_the_clients_and_they_are_numbered(server: Server) -> None:
    body = {"model": NAME, "input": "Hi", "max_output_tokens": 8, "stream": True}
    answer = server.post("/v1/responses", body)
    assert answer.headers["content-type"].startswith("text/event-stream")
    numbers = []
    for block in answer.text.strip().split("\n\n"):
        name, data = block.split("\n")
        event = EVENT.validate_python(json.loads(data.removeprefix("data: ")))
        assert f"event: {event.type}" == name
        numbers.append(event.sequence_number)

    assert list(range(len(numbers))) == numbers


def test_a_conversation_goes_on_from_the_response_before(client: openai.OpenAI) -> None:
    first = respond(client, "What is a scheduler?", instructions="Be brief.")
    second = respond(client, "And a cache?", previous_response_id=first.id)
    third = respond(client, "Why?", previous_response_id=second.id, instructions="Rhyme.")

    messages: list[Any] = [{"role": "user", "content": "What is a scheduler?"}]
    messages += [{"role": "assistant", "content": first.output_text}]
    messages += [{"role": "user", "content": "And a cache?"}]
    assert said(client, messages) == second.output_text  # instructions are not carried over
    messages += [{"role": "assistant", "content": second.output_text}]
    messages += [{"role": "user", "content": "Why?"}]
    rhyming = [{"role": "system", "content": "Rhyme."}, *messages]
    assert said(client, rhyming) == third.output_text
    assert second.id == third.previous_response_id


@pytest.mark.parametrize("choice", ["required", {"type": "function", "name": "weather"}])
@pytest.mark.parametrize("stream", [False, True])
def test_a_tool_that_must_be_called_is(client: openai.OpenAI, choice: Any, stream: bool) -> None:
    body: Any = {"tools": [WEATHER], "tool_choice": choice, "parallel_tool_calls": False}
    body |= {"max_output_tokens": 80, "temperature": 1.0}
    if stream:
        with client.responses.stream(model=NAME, input="Weather?", **body) as events:
            done = [e for e in events if e.type == "response.function_call_arguments.done"]
            response: Any = events.get_final_response()
        [call] = response.output
        assert [call.arguments] == [event.arguments for event in done]
        assert call.parsed_arguments["city"] in ("Rome", "Oslo")
    else:
        response = respond(client, "Weather?", **body)
        [call] = response.output

    assert ("function_call", "weather", "completed") == (call.type, call.name, call.status)
    assert json.loads(call.arguments)["days"] in (1, 2)
    assert "completed" == response.status
    output = {"type": "function_call_output", "call_id": call.call_id, "output": "Sunny"}
    after = respond(client, [output], previous_response_id=response.id)
    assert after.output_text


class Trip(BaseModel):
    city: Literal["Rome", "Oslo"]
    days: Literal[1, 2]


def test_an_output_is_held_to_a_schema(client: openai.OpenAI) -> None:
    wanted: Any = {"format": {"type": "json_schema", "name": "trip", "schema": SCHEMA}}
    response = respond(client, text=wanted, max_output_tokens=100, temperature=1)

    assert Trip.model_validate_json(response.output_text)
    assert "trip" == response.text.format.name
    parsed = client.responses.parse(
        model=NAME, input="Where to?", text_format=Trip, max_output_tokens=100
    )
    assert isinstance(parsed.output_parsed, Trip)


def test_what_was_stored_can_be_looked_up_and_deleted(client: openai.OpenAI) -> None:
    items: Any = [{"role": "user", "content": text} for text in ("one", "two", "three")]
    response = respond(client, items)

    assert response.output == client.responses.retrieve(response.id).output
    page = client.responses.input_items.list(response.id, order="asc", limit=2)
    texts = [item.content[0].text for item in page]  # type: ignore[union-attr]  # and the next page
    assert ["one", "two", "three"] == texts
    newest = client.responses.input_items.list(response.id).data
    assert "three" == newest[0].content[0].text  # type: ignore[union-attr]

    client.responses.delete(response.id)
    for call in (client.responses.retrieve, client.responses.delete):
        with pytest.raises(openai.NotFoundError, match="no response"):
            call(response.id)
    with pytest.raises(openai.NotFoundError, match="no response"):
        respond(client, previous_response_id=response.id)


def test_what_was_not_stored_is_not_there(client: openai.OpenAI) -> None:
    response = respond(client, store=False)

    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(response.id)


def test_a_response_in_the_background_is_asked_after(client: openai.OpenAI) -> None:
    begun = respond(client, background=True)
    assert begun.status in ("queued", "in_progress")

    until(lambda: client.responses.retrieve(begun.id).status == "incomplete", 20)

    assert respond(client).output_text == client.responses.retrieve(begun.id).output_text


def test_a_stream_in_the_background_can_be_taken_up_again(client: openai.OpenAI) -> None:
    with respond(client, background=True, stream=True) as stream:
        seen = [next(iter(stream)) for _ in range(4)]
    assert ["response.queued", "response.created"] == [event.type for event in seen[:2]]
    name = seen[0].response.id

    rest = list(client.responses.retrieve(name, stream=True, starting_after=3))

    assert list(range(4, 4 + len(rest))) == [event.sequence_number for event in rest]
    assert "response.incomplete" == rest[-1].type
    again = list(client.responses.retrieve(name, stream=True))
    assert again[4:] == rest


def test_a_response_in_the_background_can_be_cancelled(
    client: openai.OpenAI, server: Server
) -> None:
    extra = {"ignore_eos": True}
    begun = respond(client, background=True, max_output_tokens=3000, extra_body=extra)
    until(lambda: client.responses.retrieve(begun.id).status == "in_progress", 20)

    assert "cancelled" == client.responses.cancel(begun.id).status
    until(lambda: server.get("/load").json()["running"] == 0, 10)
    assert "cancelled" == client.responses.retrieve(begun.id).status
    with pytest.raises(openai.BadRequestError, match="is cancelled, so nothing can follow"):
        respond(client, previous_response_id=begun.id)
    plain = respond(client)
    with pytest.raises(openai.BadRequestError, match="not one in the background"):
        client.responses.cancel(plain.id)


def test_who_leaves_ends_the_response(client: openai.OpenAI, server: Server) -> None:
    extra = {"ignore_eos": True}
    with respond(client, stream=True, max_output_tokens=3000, extra_body=extra) as stream:
        next(iter(stream))
        assert 1 == server.get("/load").json()["running"]

    until(lambda: server.get("/load").json()["running"] == 0, 10)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"input": []}, "input is empty"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "of type 'item_reference'"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input_image"),
        ({"input": [{"role": "cat", "content": "x"}]}, "input[0].role"),
        ({"input": [{"type": "function_call", "name": "f"}]}, "input[0].call_id"),
        ({"input": "x " * 9000}, "the prompt has"),
        ({"tools": [{"type": "web_search"}]}, "tools of type web_search are not run here"),
        ({"tool_choice": {"type": "mcp"}}, "tool_choice of type mcp"),
        ({"include": ["web_search_call.results"]}, "include"),
        ({"reasoning": {"summary": "detailed"}}, "not summarised"),
        ({"text": {"format": {"type": "json_schema"}}}, "needs a schema"),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
        ({"text": {"verbosity": "low"}}, "text.verbosity"),
        ({"conversation": "c"}, "conversation is not supported"),
        ({"truncation": "auto"}, "truncation is not supported"),
        ({"prompt": {"id": "p"}}, "prompt is not supported"),
        ({"top_logprobs": 2}, "top_logprobs is not supported"),
        ({"background": True, "store": False}, "must be stored"),
        ({"max_output_tokens": 0}, "max_tokens must be at least 1"),
        ({"max_tokens": 5}, "no parameter max_tokens"),
        ({"temperature": -1}, "temperature must be in"),
        ({"chat_template_kwargs": {"messages": []}}, "messages has a place of its own"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_what_is_wrong_is_said(
    server: Server, change: dict[str, Any], message: str, stream: bool
) -> None:
    body = {"model": NAME, "input": "Hi", "max_output_tokens": 4, "stream": stream, **change}
    answer: httpx.Response = server.post("/v1/responses", body)

    assert 400 == answer.status_code, answer.text
    assert message in answer.json()["error"]["message"], answer.text


@pytest.mark.parametrize("query", ["limit=0", "limit=101", "limit=x", "order=up", "after=nothing"])
def test_bad_queries_are_said(server: Server, client: openai.OpenAI, query: str) -> None:
    name = respond(client, max_output_tokens=1).id
    answer = server.get(f"/v1/responses/{name}/input_items?{query}")

    assert 400 == answer.status_code, answer.text
