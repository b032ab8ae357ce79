"""Bodies of the Responses API."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import msgspec

from allmetal.server.bodies import Body, Int


class Reasoning(msgspec.Struct, kw_only=True):
    effort: str | None = None
    summary: str | None = None
    generate_summary: str | None = None


class Format(msgspec.Struct, kw_only=True):
    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    description: str | None = None
    schema: dict[str, Any] | None = None
    strict: bool | None = None


class Text(msgspec.Struct, kw_only=True):
    format: Format | None = None
    verbosity: str | None = None


class ResponseRequest(Body, kw_only=True):
    inert: ClassVar[frozenset[str]] = frozenset(
        {
            "user",
            "service_tier",
            "safety_identifier",
            "prompt_cache_key",
            "prompt_cache_options",
            "prompt_cache_retention",
            "stream_options",
            "max_tool_calls",  # of tools that are built in, and none is
        }
    )
    refused: ClassVar[Mapping[str, tuple[object, ...]]] = {
        "access_programs": (),
        "background_options": (),
        "context_management": ([],),
        "conversation": (),
        "image": (),
        "moderation": (),
        "prompt": (),
        "top_logprobs": (0,),
        "truncation": ("disabled",),
    }

    model: str | None = None
    input: str | list[dict[str, Any]]
    instructions: str | None = None
    previous_response_id: str | None = None
    stream: bool | None = None
    store: bool | None = None
    background: bool | None = None
    include: list[str] | None = None
    metadata: dict[str, str] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    reasoning: Reasoning | None = None
    text: Text | None = None
    max_output_tokens: Int | None = None
    temperature: float | None = None
    top_p: float | None = None

    # Beyond OpenAI's, named as other engines name them.
    top_k: Int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    seed: Int | None = None
    min_tokens: Int | None = None
    ignore_eos: bool | None = None
    priority: Int | None = None
    cache_salt: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
