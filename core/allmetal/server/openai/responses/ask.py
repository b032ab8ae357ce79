"""A body of the Responses API in the terms that all APIs share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from allmetal.errors import RequestError
from allmetal.request import SamplingParams, StructuredOutput
from allmetal.server.conversation import template_arguments
from allmetal.server.openai.responses.items import Json, messages_of
from allmetal.server.openai.responses.protocol import ResponseRequest
from allmetal.server.turn import Asked

_SAME_NAME = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "seed",
    "min_tokens",
    "ignore_eos",
)
# Asked for so that reasoning comes back in the next turn: here it is not hidden to begin with.
_INCLUDED = frozenset({"reasoning.encrypted_content"})


def asked(body: ResponseRequest, history: Sequence[Json]) -> Asked:
    """Raises RequestError naming what cannot be had."""
    for name in body.include or ():
        if name not in _INCLUDED:
            raise RequestError(f"include: {name} cannot be had", hint="leave it out")
    tools, choice = _tools_and_choice(body)
    reasoning = body.reasoning
    if reasoning is not None:
        for summary in (reasoning.summary, reasoning.generate_summary):
            if summary not in (None, "auto"):
                raise RequestError(
                    "reasoning.summary: reasoning is not summarised here",
                    hint="leave it out: all of the reasoning comes",
                )
    return Asked(
        messages=messages_of(history, body.instructions),
        tools=tools,
        tool_choice=choice,
        parallel_tool_calls=body.parallel_tool_calls is not False,
        structured=_structured(body),
        reasoning_effort=None if reasoning is None else reasoning.effort,
        template=template_arguments(body.chat_template_kwargs),
    )


def sampling_of(body: ResponseRequest, defaults: Mapping[str, Any]) -> SamplingParams:
    values = dict(defaults)
    values |= {n: v for n in _SAME_NAME if (v := getattr(body, n)) is not None}
    values["max_tokens"] = body.max_output_tokens
    return SamplingParams(**values)


def _structured(body: ResponseRequest) -> StructuredOutput | None:
    if body.text is None:
        return None
    if body.text.verbosity not in (None, "medium"):
        raise RequestError("text.verbosity is not supported", hint="leave it out")
    wanted = body.text.format
    if wanted is None or wanted.type == "text":
        return None
    if wanted.type == "json_object":
        return StructuredOutput(json_object=True, any_whitespace=False)
    if wanted.schema is None:
        raise RequestError("text.format of type json_schema needs a schema")
    # Without bounds, a model that is unsure may write spaces until its tokens are used up.
    return StructuredOutput(json=wanted.schema, any_whitespace=False)


def _tools_and_choice(body: ResponseRequest) -> tuple[list[Json], Any]:
    tools = [_tool(tool, f"tools[{i}]") for i, tool in enumerate(body.tools or ())]
    choice = body.tool_choice
    if choice is None or isinstance(choice, str):
        return tools, choice or "auto"
    match choice.get("type"):
        case "function":
            return tools, {"type": "function", "function": {"name": choice.get("name")}}
        case "allowed_tools":
            names = {tool.get("name") for tool in choice.get("tools") or () if "name" in tool}
            left = [tool for tool in tools if tool["function"]["name"] in names]
            return left, choice.get("mode", "auto")
        case kind:
            raise RequestError(f"tool_choice of type {kind} is not supported")


def _tool(tool: Mapping[str, Any], where: str) -> Json:
    if tool.get("type") != "function":
        raise RequestError(
            f"{where}: tools of type {tool.get('type')} are not run here",
            hint="give functions of your own: type, name, parameters",
        )
    names = ("name", "description", "parameters", "strict")
    function = {name: tool[name] for name in names if tool.get(name) is not None}
    return {"type": "function", "function": function}
