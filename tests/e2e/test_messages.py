"""Anthropic's Messages API through the official client."""

from __future__ import annotations

import json
from typing import Any

import anthropic
import httpx
import pytest
from anthropic.types import RawMessageStreamEvent
from pydantic import TypeAdapter
from servers import NAME, Server, until

EVENT: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)
USER: list[Any] = [{"role": "user", "content": "Tell me a story."}]
WEATHER: Any = {
    "name": "weather",
    "description": "The weather in a city",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"enum": ["Rome", "Oslo"]}, "days": {"enum": [1, 2]}},
        "required": ["city", "days"],
        "additionalProperties": False,
    },
}


@pytest.fixture
def client(server: Server) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0)


def ask(client: anthropic.Anthropic, messages: Any = USER, **body: Any) -> Any:
    extra = {"temperature": body.pop("temperature", 0)}  # this client has no argument for it
    settings = {"max_tokens": 24, **body}
    return client.messages.create(model=NAME, messages=messages, extra_body=extra, **settings)


def chat(server: Server, messages: list[Any], **body: Any) -> Any:
    asked = {"messages": messages, "max_tokens": 24, "temperature": 0, **body}
    return server.post("/v1/chat/completions", asked).json()


def test_a_message_is_the_chat_of_the_same_words(
    client: anthropic.Anthropic, server: Server
) -> None:
    messages = [*USER, {"role": "assistant", "content": "Once."}, {"role": "user", "content": "On"}]
    expected = chat(server, [{"role": "system", "content": "Be brief."}, *messages])

    message = ask(client, messages, system="Be brief.")

    assert expected["choices"][0]["message"]["content"] == message.content[0].text
    assert ("message", "assistant", NAME) == (message.type, message.role, message.model)
    assert "max_tokens" == message.stop_reason
    usage = message.usage
    assert expected["usage"]["prompt_tokens"] == usage.input_tokens + usage.cache_read_input_tokens
    assert 24 == usage.output_tokens


def test_content_and_system_may_come_in_blocks(client: anthropic.Anthropic) -> None:
    blocks = [{"type": "text", "text": "Tell me", "cache_control": {"type": "ephemeral"}}]
    blocks += [{"type": "text", "text": "a story."}]  # type: ignore[dict-item]
    in_blocks = ask(client, [{"role": "user", "content": blocks}], system=[blocks[1]])
    plain = [{"role": "user", "content": "Tell me\na story."}]

    assert ask(client, plain, system="a story.").content == in_blocks.content


def test_an_answer_goes_on_from_what_is_put_in_its_mouth(
    client: anthropic.Anthropic, server: Server
) -> None:
    begun = [*USER, {"role": "assistant", "content": "Once upon"}]
    prompt = "<|user|>Tell me a story.<|end|><|assistant|>Once upon"
    asked = {"prompt": prompt, "max_tokens": 24, "temperature": 0}
    expected = server.post("/v1/completions", asked).json()

    message = ask(client, begun)

    assert expected["choices"][0]["text"] == message.content[0].text
    counted = client.messages.count_tokens(model=NAME, messages=begun).input_tokens
    assert expected["usage"]["prompt_tokens"] == counted


def test_streaming_says_the_same_as_not_streaming(client: anthropic.Anthropic) -> None:
    whole = ask(client)
    greedy = {"temperature": 0}
    with client.messages.stream(
        model=NAME, messages=USER, max_tokens=24, extra_body=greedy
    ) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()

    assert whole.content[0].text == text == final.content[0].text  # type: ignore[union-attr]
    assert whole.stop_reason == final.stop_reason
    assert whole.usage.output_tokens == final.usage.output_tokens


def test_every_event_is_one_of_the_clients_and_they_come_in_order(server: Server) -> None:
    body = {"model": NAME, "messages": USER, "max_tokens": 8, "stream": True}
    answer = server.post("/v1/messages", body)
    assert answer.headers["content-type"].startswith("text/event-stream")
    blocks = [block.split("\n") for block in answer.text.strip().split("\n\n")]
    names = []
    for name, data in blocks:
        event = EVENT.validate_python(json.loads(data.removeprefix("data: ")))
        assert f"event: {event.type}" == name
        names.append(event.type)

    assert ["message_start", "content_block_start"] == names[:2]
    assert ["content_block_stop", "message_delta", "message_stop"] == names[-3:]
    assert {"content_block_delta"} == set(names[2:-3])


def test_a_stop_sequence_is_named(client: anthropic.Anthropic) -> None:
    text = ask(client).content[0].text
    stop = text[4:7]

    message = ask(client, stop_sequences=[stop, "never"])

    assert ("stop_sequence", stop) == (message.stop_reason, message.stop_sequence)
    assert text[: text.index(stop)] == message.content[0].text


@pytest.mark.parametrize("stream", [False, True])
def test_a_tool_that_must_be_called_is(client: anthropic.Anthropic, stream: bool) -> None:
    for choice in ({"type": "any"}, {"type": "tool", "name": "weather"}):
        body = {
            "max_tokens": 80,
            "tools": [WEATHER],
            "tool_choice": {**choice, "disable_parallel_tool_use": True},
        }
        if stream:
            with client.messages.stream(model=NAME, messages=USER, **body) as events:  # type: ignore[arg-type]
                message: Any = events.get_final_message()
        else:
            message = ask(client, **body, temperature=1)

        [call] = message.content
        assert ("tool_use", "weather", "tool_use") == (call.type, call.name, message.stop_reason)
        assert call.input["city"] in ("Rome", "Oslo")
        assert call.input["days"] in (1, 2)


def test_the_result_of_a_tool_goes_back(client: anthropic.Anthropic, server: Server) -> None:
    use = {"type": "tool_use", "id": "t1", "name": "weather", "input": {"city": "Rome"}}
    result = {"type": "tool_result", "tool_use_id": "t1", "content": "Sunny"}
    thought = {"type": "thinking", "thinking": "Hm.", "signature": ""}
    messages = [
        *USER,
        {"role": "assistant", "content": [thought, {"type": "text", "text": "I look."}, use]},
        {"role": "user", "content": [result, {"type": "text", "text": "So?"}]},
    ]
    function = {"name": "weather", "arguments": '{"city": "Rome"}'}
    expected = chat(
        server,
        [
            *USER,
            {
                "role": "assistant",
                "content": "I look.",
                "tool_calls": [{"id": "t1", "type": "function", "function": function}],
            },
            {"role": "tool", "tool_call_id": "t1", "content": "Sunny"},
            {"role": "user", "content": "So?"},
        ],
    )

    message = ask(client, messages)

    assert expected["choices"][0]["message"]["content"] == message.content[0].text


def test_an_output_is_held_to_a_schema(client: anthropic.Anthropic) -> None:
    schema = WEATHER["input_schema"]
    output = {"format": {"type": "json_schema", "schema": schema}}

    message = ask(client, output_config=output, max_tokens=100, temperature=1)

    assert json.loads(message.content[0].text)["city"] in ("Rome", "Oslo")


def test_tokens_are_counted_as_the_prompt_has_them(
    client: anthropic.Anthropic, server: Server
) -> None:
    counted = client.messages.count_tokens(model=NAME, messages=USER, system="Be brief.")
    tokens = server.post(
        "/tokenize", {"messages": [{"role": "system", "content": "Be brief."}, *USER]}
    ).json()

    assert tokens["count"] == counted.input_tokens


def test_errors_have_that_apis_shape(client: anthropic.Anthropic, server: Server) -> None:
    with pytest.raises(anthropic.BadRequestError) as raised:
        ask(client, temperature=1.5)
    body: Any = raised.value.body
    assert ("error", "invalid_request_error") == (body["type"], body["error"]["type"])
    assert "temperature must be in [0, 1]" in body["error"]["message"]
    assert raised.value.request_id == body["request_id"]

    with pytest.raises(anthropic.NotFoundError, match="no model 'other'"):
        client.messages.create(model="other", messages=USER, max_tokens=1)
    with pytest.raises(anthropic.BadRequestError, match="the prompt has"):
        ask(client, [{"role": "user", "content": "word " * 9000}])
    image: Any = {"type": "image", "source": {"type": "url", "url": "http://x"}}
    with pytest.raises(anthropic.BadRequestError, match=r"messages\[0\].content\[0\]: .*image"):
        ask(client, [{"role": "user", "content": [image]}])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens must be at least 1"),
        ({"messages": "hi"}, "messages: expected `array`"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "role must be user or assistant"),
        ({"messages": [{"role": "user", "content": [{"text": "x"}]}]}, "an object with a type"),
        ({"messages": [{"role": "user", "content": 5}]}, "a text or a list of blocks"),
        ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, "none that this server can"),
        ({"tool_choice": {"type": "tool"}}, "needs a name"),
        ({"messages": [*USER, {"role": "assistant", "content": "a "}]}, "white space"),
        (
            {
                "messages": [*USER, {"role": "assistant", "content": "a"}],
                "output_config": {"format": {"type": "json_schema", "schema": {}}},
            },
            "begun already",
        ),
        ({"tool_choice": {"type": "maybe"}}, "tool_choice.type"),
        ({"thinking": {"type": "enabled", "budget_tokens": 50}}, "must be less than max_tokens"),
        ({"thinking": {"type": "enabled"}}, "budget_tokens must be at least 1"),
        ({"mcp_servers": [{"url": "x"}]}, "mcp_servers is not supported"),
        ({"stop_sequence": ["a"]}, "no parameter stop_sequence"),
        ({"output_config": {"format": {"type": "xml"}}}, "output_config.format"),
    ],
)
def test_what_is_wrong_is_said(server: Server, change: dict[str, Any], message: str) -> None:
    body = {"model": NAME, "messages": USER, "max_tokens": 8, **change}
    answer: httpx.Response = server.post("/v1/messages", body)

    assert 400 == answer.status_code, answer.text
    assert message in answer.json()["error"]["message"], answer.text


def test_who_leaves_ends_the_request(client: anthropic.Anthropic, server: Server) -> None:
    body: Any = {"model": NAME, "messages": USER, "max_tokens": 3000}
    body["extra_body"] = {"temperature": 0}  # a story without an end
    before = server.get("/load").json()["running"]
    with client.messages.create(**body, stream=True) as stream:
        next(iter(stream))
        assert before + 1 == server.get("/load").json()["running"]

    until(lambda: server.get("/load").json()["running"] == before, 10)


def test_the_models_are_listed_in_that_apis_shape(client: anthropic.Anthropic) -> None:
    [model] = client.models.list().data

    assert (NAME, "model", NAME) == (model.id, model.type, model.display_name)
    assert model.created_at.year > 2000
    assert NAME == client.models.retrieve(NAME).id
