"""A body of the Messages API in the terms that all APIs share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from allmetal.errors import RequestError
from allmetal.request import SamplingParams, StructuredOutput
from allmetal.server.anthropic.conversation import messages_of, tools_of
from allmetal.server.anthropic.protocol import ConversationBody, MessagesRequest, ToolChoice
from allmetal.server.turn import Asked

_CHOICES = {"auto": "auto", "any": "required", "none": "none"}


def asked(body: ConversationBody) -> tuple[Asked, str]:
    """What is asked for, and the text that the answer goes on from.  Raises RequestError naming
    what cannot be had."""
    choice, config = body.tool_choice or ToolChoice(type="auto"), body.output_config
    messages, begun = messages_of(body)
    structured = _structured(body)
    if begun and (structured is not None or choice.type in ("any", "tool")):
        raise RequestError(
            "an answer that is begun already cannot be held to a form",
            hint="leave out the assistant's message at the end",
        )
    wanted = Asked(
        messages=messages,
        tools=tools_of(body.tools or ()),
        tool_choice=_choice(choice),
        parallel_tool_calls=not choice.disable_parallel_tool_use,
        structured=structured,
        reasoning_effort=None if config is None else config.effort,
        thinking_budget=_budget(body),
    )
    return wanted, begun


def _structured(body: ConversationBody) -> StructuredOutput | None:
    if body.output_config is None or (wanted := body.output_config.format) is None:
        return None
    # Without bounds, a model that is unsure may write spaces until its tokens are used up.
    return StructuredOutput(json=wanted.schema, any_whitespace=False)


def _choice(choice: ToolChoice) -> Any:
    if choice.type != "tool":
        return _CHOICES[choice.type]
    if choice.name is None:
        raise RequestError("tool_choice of type tool needs a name")
    return {"type": "function", "function": {"name": choice.name}}


def _budget(body: ConversationBody) -> int | None:
    """As the API has it, a request that says nothing wants no thinking."""
    thinking = body.thinking
    if thinking is None or thinking.type == "disabled":
        return 0
    if thinking.type == "adaptive":
        return None
    if thinking.budget_tokens is None or thinking.budget_tokens < 1:
        raise RequestError("thinking.budget_tokens must be at least 1")
    if isinstance(body, MessagesRequest) and thinking.budget_tokens >= body.max_tokens:
        raise RequestError(
            f"thinking.budget_tokens ({thinking.budget_tokens}) must be less than max_tokens "
            f"({body.max_tokens})",
            hint="thinking counts towards max_tokens",
        )
    return thinking.budget_tokens


def sampling_of(body: MessagesRequest, defaults: Mapping[str, Any]) -> SamplingParams:
    values = dict(defaults)
    for name in ("temperature", "top_p", "top_k", "max_tokens"):
        if (value := getattr(body, name)) is not None:
            values[name] = value
    if body.temperature is not None and not 0 <= body.temperature <= 1:
        raise RequestError(f"temperature must be in [0, 1], not {body.temperature}")
    return SamplingParams(**values, stop=tuple(body.stop_sequences or ()))
