"""From a request body to SamplingParams."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from allmetal.errors import RequestError
from allmetal.request import SamplingParams
from allmetal.server.openai.protocol import ChatRequest, CommonRequest, CompletionRequest
from allmetal.server.openai.structured import structured_of

_SAME_NAME = (
    "n",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "logit_bias",
    "seed",
    "min_tokens",
    "ignore_eos",
    "include_stop_str_in_output",
    "skip_special_tokens",
    "prompt_logprobs",
)
_LISTS = ("stop_token_ids", "allowed_token_ids", "bad_words")


def _common(body: CommonRequest, defaults: Mapping[str, Any]) -> dict[str, Any]:
    values = dict(defaults)
    values |= {n: v for n in _SAME_NAME if (v := getattr(body, n)) is not None}
    values |= {n: tuple(v) for n in _LISTS if (v := getattr(body, n)) is not None}
    if body.stop is not None:
        values["stop"] = (body.stop,) if isinstance(body.stop, str) else tuple(body.stop)
    if values.get("top_k") == -1:  # how others write "off"
        values["top_k"] = 0
    return values


def for_completion(body: CompletionRequest, defaults: Mapping[str, Any]) -> SamplingParams:
    """`max_tokens` 0 with `echo` only scores the prompt; the engine still makes one token."""
    values = _common(body, defaults)
    if body.max_tokens == 0 and not body.echo:
        raise RequestError("max_tokens is 0", hint="only with echo, to score a prompt")
    if body.max_tokens is not None:
        values["max_tokens"] = max(1, body.max_tokens) if body.echo else body.max_tokens
    if body.logprobs is not None:
        values["logprobs"] = body.logprobs
        if body.echo:
            values["prompt_logprobs"] = body.logprobs
    return SamplingParams(**values, structured=structured_of(body))


def for_chat(body: ChatRequest, defaults: Mapping[str, Any]) -> SamplingParams:
    """Without a limit a chat runs until the model stops or its context is full."""
    limits = {body.max_tokens, body.max_completion_tokens} - {None}
    if len(limits) > 1:
        raise RequestError("max_tokens and max_completion_tokens differ", hint="give one of them")
    values = _common(body, defaults)
    values["max_tokens"] = limits.pop() if limits else None
    if body.top_logprobs is not None and not body.logprobs:
        raise RequestError("top_logprobs is given without logprobs", hint="add logprobs: true")
    if body.logprobs:
        values["logprobs"] = body.top_logprobs or 0
    return SamplingParams(**values)
