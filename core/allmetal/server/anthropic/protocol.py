"""Bodies of the Messages API."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import msgspec

from allmetal.server.bodies import Body, Int


class Tool(msgspec.Struct, kw_only=True):
    """`type` other than custom names a tool that Anthropic itself runs."""

    name: str
    type: str | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None


class ToolChoice(msgspec.Struct, kw_only=True):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(msgspec.Struct, kw_only=True):
    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: Int | None = None


class Format(msgspec.Struct, kw_only=True):
    type: Literal["json_schema"]
    schema: dict[str, Any]


class OutputConfig(msgspec.Struct, kw_only=True):
    effort: str | None = None
    format: Format | None = None


class ConversationBody(Body, kw_only=True):
    """What is said so far: all that makes the prompt."""

    inert: ClassVar[frozenset[str]] = frozenset(
        {"metadata", "service_tier", "cache_control", "user_profile_id", "workspace_id", "speed"}
    )
    refused: ClassVar[Mapping[str, tuple[object, ...]]] = {
        "container": (),
        "context_management": (),
        "diagnostics": (),
        "inference_geo": (),
        "mcp_servers": ([],),
        "prefill": (),
    }

    model: str
    messages: list[dict[str, Any]]
    system: str | list[dict[str, Any]] | None = None
    tools: list[Tool] | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None


class CountTokensRequest(ConversationBody, kw_only=True):
    pass


class MessagesRequest(ConversationBody, kw_only=True):
    max_tokens: Int
    stream: bool | None = None
    stop_sequences: list[str] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: Int | None = None
