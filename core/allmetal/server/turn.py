"""One assistant turn, whatever API asks for it: messages and tools in, a prompt and a parser out.

Who calls `prepare` gives the prompt and the sampling to the engine and each choice's text to a
parser of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from allmetal.constraint import StructuredOutput, Thinking
from allmetal.errors import RequestError
from allmetal.parsing import Event, Family, Message, ParseContext, Parser
from allmetal.plugins.manager import plugins
from allmetal.request import FinishReason, SamplingParams
from allmetal.server.conversation import for_template
from allmetal.server.state import ServerState
from allmetal.server.tool_schema import check_tools, chosen_tools, schema_of_calls
from allmetal.text.tokenizer import Tokenizer

ToolChoice: TypeAlias = str | Mapping[str, Any]

_TAIL = 32
"""Tokens at a prompt's end that may have begun the thoughts, or ended them."""
_CALLS_PARSER = "json_calls"
"""Reads what `schema_of_calls` demands."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What is asked for.  Messages, tools and choice as in OpenAI's chat completions.

    `thinking_budget`: most tokens of thoughts; 0: none.  `template`: goes to the chat template.
    """

    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]] = ()
    tool_choice: ToolChoice = "auto"
    parallel_tool_calls: bool = True
    structured: StructuredOutput | None = None
    reasoning: bool = True  # whether it is told apart
    reasoning_effort: str | None = None
    thinking_budget: int | None = None
    template: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """Ready to be generated."""

    prompt: list[int]
    sampling: SamplingParams
    family: Family
    context: ParseContext
    parallel: bool = True  # whether there may be more than one call

    def parser(self) -> Parser:
        """A new one, for one choice."""
        parser = self.family.parser(self.context)
        return parser if self.parallel else _OneCall(parser)

    def finish_reason(self, reason: FinishReason | None, message: Message) -> str | None:
        """OpenAI's word for why a choice has ended."""
        return "tool_calls" if reason == "stop" and message.tool_calls else reason


class _OneCall:
    """Leaves out all calls but the first."""

    def __init__(self, parser: Parser) -> None:
        self._parser = parser

    def parse(self, text: str, *, final: bool = False) -> list[Event]:
        events = self._parser.parse(text, final=final)
        return [event for event in events if getattr(event, "index", 0) == 0]


async def prepare(state: ServerState, asked: Asked, sampling: SamplingParams) -> Turn:
    """Raises RequestError, with a hint, for what cannot be had."""
    check_tools(asked.tools, asked.tool_choice)
    wanted = asked.tools if asked.tool_choice != "none" else ()
    tools = chosen_tools(wanted, asked.tool_choice)
    demanded = bool(tools) and asked.tool_choice != "auto"
    if tools and asked.structured is not None:
        raise RequestError(
            "an output cannot be held to a format while tools may be called",
            hint='set tool_choice to "none", or leave the format or the tools out',
        )
    family = _family(state, demanded=demanded)
    if tools and family.tools is None:
        raise RequestError(
            "how this model writes tool calls is not known, so that they could not be read",
            hint='start with --tool-parser NAME, or set tool_choice to "required"',
        )
    tokenizer = state.engine.tokenizer
    prompt = await state.engine.chat_prompt(
        for_template(asked.messages), tools=list(wanted) or None, **_template(asked)
    )
    end = await state.engine.in_thread(tokenizer.decode, prompt[-_TAIL:], False)
    structured = asked.structured
    if demanded:
        structured = StructuredOutput(
            json=schema_of_calls(tools, parallel=asked.parallel_tool_calls), any_whitespace=False
        )
    thinking = thinking_of(
        family, tokenizer, end, budget=asked.thinking_budget, constrained=structured is not None
    )
    if demanded and _calls_instead_of_answering(state.family):
        thinking = None  # so that the calls come at once
    return Turn(
        prompt=prompt,
        sampling=replace(
            sampling,
            structured=structured or sampling.structured,
            thinking=thinking,
            shown_special_tokens=family.special_tokens if tools or asked.reasoning else (),
        ),
        family=family,
        context=ParseContext(tools=tools, reasoning=asked.reasoning, prompt_end=end),
        parallel=asked.parallel_tool_calls,
    )


def _family(state: ServerState, *, demanded: bool) -> Family:
    """Calls that are demanded come as JSON, which constrains well, not in the model's own form."""
    family = state.family
    if not demanded:
        return family
    return replace(family, tools=plugins().parsers()[_CALLS_PARSER])


def _calls_instead_of_answering(family: Family) -> bool:
    """Whether thoughts may lead to a call in the model's own form, with no answer ever begun."""
    both = family.reasoning is not None and family.reasoning is family.tools
    return both and family.markers is not None and family.markers.open


def _template(asked: Asked) -> dict[str, Any]:
    """What the chat template is told beside messages and tools."""
    told: dict[str, Any] = {"add_generation_prompt": True}
    if asked.reasoning_effort is not None and asked.reasoning_effort != "none":
        told["reasoning_effort"] = asked.reasoning_effort
    if asked.reasoning_effort == "none" or asked.thinking_budget == 0:
        told |= {"enable_thinking": False, "thinking": False}
    return {**told, **asked.template}


def thinking_of(
    family: Family, tokenizer: Tokenizer, prompt_end: str, *, budget: int | None, constrained: bool
) -> Thinking | None:
    """Where thoughts begin and end, if anything depends on it.  Raises RequestError for a budget
    of thoughts that cannot be told apart."""
    if budget is None and not constrained:
        return None
    markers = family.markers
    if markers is None:
        if not budget:
            return None
        raise RequestError(
            "this model's reasoning is not told apart, so that it could not be bounded",
            hint="start with --reasoning-parser NAME, or leave the budget out",
        )
    before = prompt_end.rstrip()
    if before.endswith(markers.end.strip()):
        return None
    start = _ids(tokenizer, markers.start)
    begun = markers.open or before.endswith(markers.start.strip())
    if budget and not begun and len(start) != 1:
        raise RequestError(
            "this model's reasoning does not begin with one token, so that it could not be bounded",
            hint="leave the budget out, or ask the chat template to begin it",
        )
    return Thinking(
        start=start,
        end=_ids(tokenizer, markers.end),
        forced=_ids(tokenizer, markers.forced_end),
        open=begun,
        budget=budget,
    )


def _ids(tokenizer: Tokenizer, text: str) -> tuple[int, ...]:
    return tuple(tokenizer.encode(text, add_special_tokens=False)) if text else ()
