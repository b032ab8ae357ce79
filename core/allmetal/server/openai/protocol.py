"""Bodies of completions and chat completions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

import msgspec

from allmetal.server.bodies import Body, Entries, Int

# Each choice is a sequence with a state of its own from the start.
Choices = Annotated[int, msgspec.Meta(le=1024)]


class StreamOptions(msgspec.Struct, kw_only=True):
    include_usage: bool | None = None


class CommonRequest(Body, kw_only=True):
    """What completions and chat completions share."""

    inert: ClassVar[frozenset[str]] = frozenset(
        {"user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key"}
    )

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Choices | None = None
    max_tokens: Int | None = None
    temperature: float | None = None
    top_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[Int, float] | None = None
    stop: str | list[str] | None = None
    seed: Int | None = None

    # Beyond OpenAI's, named as other engines name them.
    top_k: Int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    min_tokens: Int | None = None
    ignore_eos: bool | None = None
    stop_token_ids: list[Int] | None = None
    allowed_token_ids: list[Int] | None = None
    bad_words: list[str] | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    prompt_logprobs: Entries | None = None
    priority: Int | None = None
    cache_salt: str | None = None


class CompletionRequest(CommonRequest, kw_only=True):
    refused: ClassVar[Mapping[str, tuple[object, ...]]] = {
        "best_of": (1,),
        "tools": ([],),
        "suffix": ("",),
        "response_format": ({"type": "text"},),
    }

    prompt: str | list[str | Int | list[Int]]
    echo: bool | None = None
    logprobs: Entries | None = None


class ChatRequest(CommonRequest, kw_only=True):
    refused: ClassVar[Mapping[str, tuple[object, ...]]] = {
        "tools": ([],),
        "tool_choice": ("none", "auto"),
        "functions": ([],),
        "function_call": ("none", "auto"),
        "parallel_tool_calls": (True, False),
        "response_format": ({"type": "text"},),
        "modalities": (["text"],),
        "audio": (),
        "prediction": (),
        "reasoning_effort": (),
        "verbosity": (),
        "web_search_options": (),
    }

    messages: list[dict[str, Any]]
    max_completion_tokens: Int | None = None
    logprobs: bool | None = None
    top_logprobs: Entries | None = None
    add_generation_prompt: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
