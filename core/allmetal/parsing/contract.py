"""How a family of models writes reasoning and tool calls: one interface, streaming and whole."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """More of what the model thinks before it answers."""

    text: str


@dataclass(frozen=True, slots=True)
class ContentDelta:
    """More of the answer."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCallStart:
    """A call begins.  `index` counts a message's calls from 0; its name is whole."""

    index: int
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class ToolCallArguments:
    """More of a call's arguments: all texts of one call together are a JSON object."""

    index: int
    text: str


@dataclass(frozen=True, slots=True)
class ToolCallEnd:
    """The call is whole.  A call that the output broke off has no end."""

    index: int


Event: TypeAlias = ReasoningDelta | ContentDelta | ToolCallStart | ToolCallArguments | ToolCallEnd


def new_call_id() -> str:
    return f"call_{uuid.uuid4().hex[:24]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ParseContext:
    """What a parser may know of its request.

    `tools`: as in a request to OpenAI's chat completions; without any, what looks like a call is
    content.  `reasoning`: whether it is told apart; if not, its text is content, markers included.
    `prompt_end`: the end of the prompt's text, special tokens spelled out, which may have opened
    the reasoning already.
    """

    tools: Sequence[Mapping[str, Any]] = ()
    reasoning: bool = True
    prompt_end: str = ""
    new_id: Callable[[], str] = new_call_id


class Parser(Protocol):
    """One completion's parser.

    However a text is cut into pieces, the events say the same: adjacent deltas of a kind joined,
    they are equal to those of the whole in one call.  It never raises: what is not of the format
    falls through as content.
    """

    def parse(self, text: str, *, final: bool = False) -> list[Event]:
        """What `text`, which follows that of the calls before, makes certain.

        `final`: nothing follows, so what was held back comes too.  A whole text is parsed by one
        final call; a stream may end with an empty final one.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Markers:
    """Texts around the reasoning.

    `forced_end`: what to put where a thinking budget ends it, if more than `end`.  `open`: whether
    an output begins within the reasoning although its prompt did not open it.
    """

    start: str
    end: str
    forced_end: str = ""
    open: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ParserSpec:
    """A parser as a plugin announces it.

    `make` makes one for one completion.  `reasoning`, `tools`: what it tells apart; one that does
    both is used for both where it is asked for both.  `detects`: whether a model with this chat
    template surely writes that way (Jinja source).  `special_tokens`: those that must stay in the
    text though others are left out of it, as far as a model has them.
    """

    name: str
    make: Callable[[ParseContext], Parser]
    reasoning: bool = False
    tools: bool = False
    detects: Callable[[str], bool] = lambda template: False
    special_tokens: tuple[str, ...] = ()
    markers: Markers | None = None
