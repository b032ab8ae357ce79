"""POST /v1/completions through the openai client."""

from __future__ import annotations

import math
from typing import Any

import openai
import pytest
from servers import NAME, Server

PROMPT = "The quick brown"


def complete(client: openai.OpenAI, prompt: Any = PROMPT, **body: Any) -> Any:
    extra = {k: body.pop(k) for k in list(body) if k in EXTRA}
    settings = {"max_tokens": 24, "temperature": 0, **body}
    return client.completions.create(model=NAME, prompt=prompt, extra_body=extra, **settings)


EXTRA = {"ignore_eos", "top_k", "min_p", "min_tokens", "stop_token_ids", "repetition_penalty"}
EXTRA |= {"allowed_token_ids", "prompt_logprobs", "include_stop_str_in_output"}


def test_a_completion_has_text_and_counts(client: openai.OpenAI) -> None:
    answer = complete(client, ignore_eos=True)
    [choice] = answer.choices

    assert choice.text
    assert choice.finish_reason == "length"
    assert answer.usage.completion_tokens == 24
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 24
    assert answer.model == NAME
    assert answer.object == "text_completion"


def test_greedy_is_the_same_each_time_and_cached_prefixes_are_told(client: openai.OpenAI) -> None:
    prompt = [7 + i % 300 for i in range(100)]
    first, second = complete(client, prompt), complete(client, prompt)

    assert first.choices[0].text == second.choices[0].text
    assert first.usage.prompt_tokens_details.cached_tokens == 0
    assert second.usage.prompt_tokens_details.cached_tokens > 0


@pytest.mark.parametrize(
    "sampling",
    [
        {},
        {"temperature": 1.0, "seed": 3},
        {"temperature": 0.8, "seed": 4, "n": 3, "logprobs": 2},
        {"logprobs": 0, "echo": True},
        {"stop": ["e", "o"]},
    ],
)
def test_streaming_says_the_same_as_not_streaming(
    client: openai.OpenAI, sampling: dict[str, Any]
) -> None:
    whole = complete(client, **sampling)
    texts = dict.fromkeys(range(len(whole.choices)), "")
    tokens: dict[int, list[str]] = {i: [] for i in texts}
    offsets: dict[int, list[int]] = {i: [] for i in texts}
    ends, usage = {}, None
    stream = complete(client, **sampling, stream=True, stream_options={"include_usage": True})
    for chunk in stream:
        usage = chunk.usage or usage
        for choice in chunk.choices:
            texts[choice.index] += choice.text
            if choice.logprobs:
                tokens[choice.index] += choice.logprobs.tokens
                offsets[choice.index] += choice.logprobs.text_offset
            if choice.finish_reason:
                ends[choice.index] = choice.finish_reason

    assert usage.completion_tokens == whole.usage.completion_tokens
    for choice in whole.choices:
        assert choice.text == texts[choice.index]
        assert choice.finish_reason == ends[choice.index]
        assert (choice.logprobs.tokens if choice.logprobs else []) == tokens[choice.index]
        assert (choice.logprobs.text_offset if choice.logprobs else []) == offsets[choice.index]


def test_text_arrives_before_the_end(client: openai.OpenAI) -> None:
    pieces = [c.choices[0].text for c in complete(client, max_tokens=60, stream=True)]

    assert sum(map(bool, pieces)) > 5


def test_a_seed_makes_sampling_repeatable_and_seeds_differ(client: openai.OpenAI) -> None:
    def text(seed: int) -> str:
        return str(complete(client, temperature=1.0, seed=seed).choices[0].text)

    assert text(1) == text(1)
    assert len({text(seed) for seed in range(4)}) > 1


def test_n_choices_of_one_prompt_differ(client: openai.OpenAI) -> None:
    answer = complete(client, temperature=1.0, seed=1, n=4)

    assert [0, 1, 2, 3] == [choice.index for choice in answer.choices]
    assert len({choice.text for choice in answer.choices}) > 1


def test_many_prompts_are_answered_in_order(client: openai.OpenAI) -> None:
    prompts = ["One", "Two engines", "Three little cats"]
    alone = [complete(client, prompt).choices[0].text for prompt in prompts]

    assert alone == [choice.text for choice in complete(client, prompts).choices]
    assert alone == [choice.text for choice in complete(client, prompts, n=1).choices]


def test_token_ids_are_a_prompt_too(client: openai.OpenAI, tiny_llama: Any) -> None:
    from allmetal.text import load_tokenizer

    ids = load_tokenizer(tiny_llama).encode(PROMPT)

    expected = complete(client).choices[0].text
    assert expected == complete(client, ids).choices[0].text
    assert [expected] * 2 == [c.text for c in complete(client, [ids, ids]).choices]


def test_a_stop_text_ends_the_output_before_it(client: openai.OpenAI) -> None:
    text = complete(client, max_tokens=40).choices[0].text
    stop = text[8:11]
    assert "�" not in stop
    end = text.index(stop)

    answer = complete(client, max_tokens=40, stop=stop)
    kept = complete(client, max_tokens=40, stop=[stop], include_stop_str_in_output=True)

    assert (text[:end], "stop") == (answer.choices[0].text, answer.choices[0].finish_reason)
    assert stop == answer.choices[0].stop_reason
    assert text[: end + len(stop)] == kept.choices[0].text


def test_a_stop_token_ends_the_output(client: openai.OpenAI) -> None:
    answer = complete(client, logprobs=0, logit_bias={"40": 100}, stop_token_ids=[40])

    assert answer.choices[0].finish_reason == "stop"
    assert answer.choices[0].stop_reason == 40
    assert answer.usage.completion_tokens == 1


def test_a_bias_and_a_list_of_allowed_tokens_decide_what_comes(client: openai.OpenAI) -> None:
    biased = complete(client, max_tokens=5, logit_bias={"41": 100})
    allowed = complete(client, max_tokens=30, temperature=8.0, allowed_token_ids=[42, 43])

    assert "EEEEE" == biased.choices[0].text
    assert set(allowed.choices[0].text) == {"F", "G"}


def test_logprobs_are_those_of_the_most_likely_tokens(client: openai.OpenAI) -> None:
    logprobs = complete(client, logprobs=4).choices[0].logprobs

    assert len(logprobs.tokens) == len(logprobs.token_logprobs) == len(logprobs.top_logprobs)
    for chosen, top in zip(logprobs.token_logprobs, logprobs.top_logprobs, strict=True):
        assert math.isclose(chosen, max(top.values()), abs_tol=1e-6)  # greedy
        assert 1 <= len(top) <= 5  # tokens of equal text share an entry
        assert sum(map(math.exp, top.values())) <= 1 + 1e-6


def test_echo_scores_the_prompt_as_generating_it_did(client: openai.OpenAI) -> None:
    ids = [0, 50, 90, 130]
    answer = complete(client, ids, max_tokens=6, logprobs=1, logit_bias={"200": 100})
    again = [*ids, *[200] * 6]
    scored = complete(client, again, max_tokens=0, echo=True, logprobs=1)
    logprobs = scored.choices[0].logprobs

    assert scored.usage.completion_tokens == 0
    assert len(logprobs.tokens) == len(again)
    assert logprobs.token_logprobs[0] is None
    assert logprobs.top_logprobs[0] is None
    expected = answer.choices[0].logprobs.token_logprobs
    assert expected == pytest.approx(logprobs.token_logprobs[4:], abs=1e-4)


def test_echo_puts_the_prompt_first(client: openai.OpenAI) -> None:
    plain = complete(client).choices[0].text

    assert PROMPT + plain == complete(client, echo=True).choices[0].text


def test_the_server_says_what_the_library_says(client: openai.OpenAI, tiny_llama: Any) -> None:
    from allmetal import LLM, SamplingParams

    with LLM(str(tiny_llama), kv_cache_memory=1 << 24, threads=1) as llm:
        [greedy] = llm.generate(PROMPT, SamplingParams(temperature=0, max_tokens=24))
        [seeded] = llm.generate(PROMPT, SamplingParams(seed=9, max_tokens=24))

    assert greedy.outputs[0].text == complete(client).choices[0].text
    assert seeded.outputs[0].text == complete(client, temperature=1.0, seed=9).choices[0].text


def test_without_a_limit_sixteen_tokens_come(client: openai.OpenAI) -> None:
    answer = client.completions.create(model=NAME, prompt="x", extra_body={"ignore_eos": True})

    assert answer.usage is not None
    assert answer.usage.completion_tokens == 16


def test_a_stream_has_events_and_ends_with_done(server: Server) -> None:
    body = {"prompt": "x", "max_tokens": 3, "stream": True}
    answer = server.post("/v1/completions", body)

    assert answer.headers["content-type"].startswith("text/event-stream")
    lines = [line for line in answer.text.splitlines() if line]
    assert all(line.startswith("data: ") for line in lines)
    assert lines[-1] == "data: [DONE]"
