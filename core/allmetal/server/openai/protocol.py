"""Bodies of completions and chat completions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

import msgspec

from allmetal.server.bodies import Body, Entries, Int

# Each choice is a sequence with a state of its own from the start.
Choices = Annotated[int, msgspec.Meta(le=1024)]

Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
# In tokens.
Budget = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]


class StreamOptions(msgspec.Struct, kw_only=True):
    include_usage: bool | None = None


class StructuredOutputs(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Exactly one form of an output, and how it is held to."""

    json: dict[str, Any] | str | None = None
    json_object: bool | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    structural_tag: dict[str, Any] | str | None = None
    disable_any_whitespace: bool = False


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
    response_format: dict[str, Any] | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: dict[str, Any] | str | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    guided_decoding_backend: str | None = None
    priority: Int | None = None
    cache_salt: str | None = None


class CompletionRequest(CommonRequest, kw_only=True):
    refused: ClassVar[Mapping[str, tuple[object, ...]]] = {
        "best_of": (1,),
        "tools": ([],),
        "suffix": ("",),
    }

    prompt: str | list[str | Int | list[Int]]
    echo: bool | None = None
    logprobs: Entries | None = None


class ChatRequest(CommonRequest, kw_only=True):
    refused: ClassVar[Mapping[str, tuple[object, ...]]] = {
        "functions": ([],),
        "function_call": ("none", "auto"),
        "modalities": (["text"],),
        "audio": (),
        "prediction": (),
        "verbosity": ("medium",),
        "web_search_options": (),
    }

    messages: list[dict[str, Any]]
    max_completion_tokens: Int | None = None
    logprobs: bool | None = None
    top_logprobs: Entries | None = None
    add_generation_prompt: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: Effort | None = None
    thinking_token_budget: Budget | None = None
    include_reasoning: bool | None = None
