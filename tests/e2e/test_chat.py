"""POST /v1/chat/completions through the openai client."""

from __future__ import annotations

from typing import Any

import openai
import pytest
from servers import NAME, Server

USER = [{"role": "user", "content": "Tell me a story."}]


def chat(client: openai.OpenAI, messages: Any = USER, **body: Any) -> Any:
    settings = {"max_tokens": 24, "temperature": 0, **body}
    return client.chat.completions.create(model=NAME, messages=messages, **settings)


def test_a_chat_is_the_completion_of_its_template(client: openai.OpenAI) -> None:
    messages = [{"role": "system", "content": "Be brief."}, *USER]
    prompt = "<|system|>Be brief.<|end|><|user|>Tell me a story.<|end|><|assistant|>"

    answer = chat(client, messages)
    completion = client.completions.create(model=NAME, prompt=prompt, max_tokens=24, temperature=0)

    assert completion.choices[0].text == answer.choices[0].message.content
    assert completion.usage.prompt_tokens == answer.usage.prompt_tokens  # type: ignore[union-attr]
    assert answer.choices[0].message.role == "assistant"
    assert answer.object == "chat.completion"


@pytest.mark.parametrize(
    "sampling",
    [
        {},
        {"temperature": 1.0, "seed": 5, "n": 2},
        {"logprobs": True, "top_logprobs": 2},
        {"stop": "e"},
    ],
)
def test_streaming_says_the_same_as_not_streaming(
    client: openai.OpenAI, sampling: dict[str, Any]
) -> None:
    whole = chat(client, **sampling)
    indices = range(len(whole.choices))
    texts, roles, ends = dict.fromkeys(indices, ""), dict.fromkeys(indices, ""), {}
    logprobs: dict[int, list[Any]] = {index: [] for index in indices}
    usage = None
    for chunk in chat(client, **sampling, stream=True, stream_options={"include_usage": True}):
        assert chunk.object == "chat.completion.chunk"
        usage = chunk.usage or usage
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
            roles[choice.index] += choice.delta.role or ""
            logprobs[choice.index] += choice.logprobs.content if choice.logprobs else []
            if choice.finish_reason:
                ends[choice.index] = choice.finish_reason

    assert usage.total_tokens == whole.usage.total_tokens
    for choice in whole.choices:
        assert choice.message.content == texts[choice.index]
        assert roles[choice.index] == "assistant"
        assert choice.finish_reason == ends[choice.index]
        assert (choice.logprobs.content if choice.logprobs else []) == logprobs[choice.index]


def test_usage_comes_only_when_asked_for(client: openai.OpenAI) -> None:
    assert all(chunk.usage is None for chunk in chat(client, stream=True))


def test_logprobs_spell_the_text_byte_by_byte(client: openai.OpenAI) -> None:
    [choice] = chat(client, logprobs=True, top_logprobs=3, max_tokens=40).choices
    content = choice.logprobs.content

    spelled = b"".join(bytes(token.bytes) for token in content)
    assert choice.message.content == spelled.decode(errors="replace")
    for token in content:
        assert len(token.top_logprobs) == 3
        assert token.logprob == token.top_logprobs[0].logprob  # greedy
        values = [top.logprob for top in token.top_logprobs]
        assert values == sorted(values, reverse=True)


def test_content_may_come_in_parts(client: openai.OpenAI) -> None:
    parts = [{"type": "text", "text": "Tell me"}, {"type": "text", "text": "a story."}]
    joined = [{"role": "user", "content": "Tell me\na story."}]

    expected = chat(client, joined).choices[0].message.content
    assert expected == chat(client, [{"role": "user", "content": parts}]).choices[0].message.content


def test_both_names_of_the_limit_work(client: openai.OpenAI) -> None:
    extra = {"ignore_eos": True}
    old = chat(client, max_tokens=5, extra_body=extra)
    new = client.chat.completions.create(
        model=NAME, messages=USER, temperature=0, max_completion_tokens=5, extra_body=extra
    )

    assert old.usage.completion_tokens == 5
    assert old.choices[0].message.content == new.choices[0].message.content


def test_a_conversation_goes_on_from_its_cached_prefix(client: openai.OpenAI) -> None:
    question = [{"role": "user", "content": "What is a scheduler? " * 8}]
    answer = chat(client, question).choices[0].message.content
    more = [*question, {"role": "assistant", "content": answer}, *USER]

    usage = chat(client, more).usage

    assert usage.prompt_tokens_details.cached_tokens > 0


def test_what_asks_for_nothing_special_is_accepted(client: openai.OpenAI) -> None:
    answer = chat(
        client,
        user="me",
        tool_choice="none",
        response_format={"type": "text"},
        metadata={"a": "b"},
        logit_bias={},
        presence_penalty=0,
    )

    assert answer.choices[0].message.content == chat(client).choices[0].message.content


def test_a_template_gets_its_own_arguments(server: Server) -> None:
    body = {"messages": USER, "max_tokens": 1, "add_generation_prompt": False}
    without = server.post("/v1/chat/completions", body).json()
    with_it = server.post("/v1/chat/completions", {**body, "add_generation_prompt": True}).json()

    assert without["usage"]["prompt_tokens"] + 1 == with_it["usage"]["prompt_tokens"]
