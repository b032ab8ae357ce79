"""Tokenising and back, held against the tokenizer's own files."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest
import tokenizers
from servers import Server

TEXT = "One engine, all metal: Käse 你好 🚀"
CHAT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}]


@pytest.fixture
def reference(tiny_llama: Path) -> tokenizers.Tokenizer:
    return tokenizers.Tokenizer.from_file(str(tiny_llama / "tokenizer.json"))


@pytest.mark.parametrize("prefix", ["", "/v1"])
@pytest.mark.parametrize("special", [True, False])
def test_a_prompt_becomes_its_tokens_and_the_tokens_the_prompt(
    server: Server, reference: tokenizers.Tokenizer, prefix: str, special: bool
) -> None:
    body = {"prompt": TEXT, "add_special_tokens": special, "return_token_strs": True}
    answer = server.post(f"{prefix}/tokenize", body).json()
    expected = reference.encode(TEXT, add_special_tokens=special)

    assert expected.ids == answer["tokens"]
    assert expected.tokens == answer["token_strs"]
    longest = server.get("/v1/models").json()["data"][0]["max_model_len"]
    assert (len(expected.ids), longest) == (answer["count"], answer["max_model_len"])
    back = server.post(f"{prefix}/detokenize", {"tokens": answer["tokens"]}).json()
    assert ("<s>" if special else "") + TEXT == back["prompt"]


def test_a_conversation_becomes_the_prompt_that_its_template_writes(
    server: Server, reference: tokenizers.Tokenizer
) -> None:
    answer = server.post("/tokenize", {"messages": CHAT}).json()
    text = "<s><|system|>Be brief.<|end|><|user|>Hello<|end|><|assistant|>"
    assert reference.encode(text, add_special_tokens=False).ids == answer["tokens"]
    usage = server.post("/v1/chat/completions", {"messages": CHAT, "max_tokens": 1}).json()["usage"]
    assert usage["prompt_tokens"] == answer["count"]

    unprompted = {"messages": CHAT, "add_generation_prompt": False}
    assert answer["tokens"][:-1] == server.post("/tokenize", unprompted).json()["tokens"]


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        ("tokenize", {}, "either a prompt or messages"),
        ("tokenize", {"prompt": "a", "messages": CHAT}, "either a prompt or messages"),
        ("tokenize", {"prompt": 5}, "prompt: expected `str | null`"),
        ("tokenize", {"messages": CHAT, "add_special_tokens": True}, "is for prompts"),
        ("tokenize", {"promt": "a"}, "no parameter promt"),
        (
            "tokenize",
            {"messages": CHAT, "chat_template_kwargs": {"tools": []}},
            "tools has a place of its own",
        ),
        (
            "tokenize",
            {"messages": CHAT, "chat_template_kwargs": {"chat_template": "x"}},
            "cannot bring a chat template",
        ),
        ("detokenize", {"tokens": [400]}, "no token 400"),
        ("detokenize", {"tokens": [-1]}, "outside of the vocabulary"),
        ("detokenize", {"tokens": [2**40]}, "outside of the vocabulary"),
        ("detokenize", {"tokens": "abc"}, "tokens: expected `array`"),
        ("detokenize", {}, "tokens"),
    ],
)
def test_what_is_wrong_is_said(server: Server, path: str, body: object, message: str) -> None:
    answer: httpx.Response = server.post(f"/{path}", body)

    assert 400 == answer.status_code
    assert message in answer.json()["error"]["message"]


def test_nothing_is_empty(server: Server) -> None:
    assert (
        [] == server.post("/tokenize", {"prompt": "", "add_special_tokens": False}).json()["tokens"]
    )
    assert "" == server.post("/detokenize", {"tokens": []}).json()["prompt"]


def test_one_request_may_not_have_any_number_of_sequences(server: Server) -> None:
    answer = server.post("/v1/completions", {"prompt": ["a"] * 600, "n": 2})

    assert 400 == answer.status_code
    error = answer.json()["error"]
    assert "600 prompts with n = 2 are 1200 sequences" in error["message"]
    assert "--max-sequences-per-request" in error["hint"]
