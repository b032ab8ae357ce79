"""Which parsers a model gets, and the two of them as one."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from allmetal.errors import ConfigError
from allmetal.parsing.contract import ContentDelta, Event, Markers, ParseContext, Parser, ParserSpec
from allmetal.plugins.manager import plugins

log = logging.getLogger(__name__)

Kind = Literal["reasoning", "tools"]
AUTO, NONE = "auto", "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """A model's parsers; None where a kind is not told apart."""

    reasoning: ParserSpec | None = None
    tools: ParserSpec | None = None

    def parser(self, context: ParseContext) -> Parser:
        """For one completion.  A context without tools or reasoning turns that part off."""
        reasoning = self.reasoning if context.reasoning else None
        tools = self.tools if context.tools else None
        if reasoning is not None and reasoning is tools:
            return reasoning.make(context)
        first = Plain() if reasoning is None else reasoning.make(replace(context, tools=()))
        if tools is None:
            return first
        second = tools.make(replace(context, reasoning=False))
        return second if reasoning is None else Chain(first, second)

    @property
    def special_tokens(self) -> tuple[str, ...]:
        """Those that must stay in the text for the parsers to see."""
        specs = [spec for spec in (self.reasoning, self.tools) if spec is not None]
        return tuple(dict.fromkeys(token for spec in specs for token in spec.special_tokens))

    @property
    def markers(self) -> Markers | None:
        return None if self.reasoning is None else self.reasoning.markers


def family_for(template: str | None, *, tools: str = AUTO, reasoning: str = AUTO) -> Family:
    """The parsers named, or those that the chat template surely speaks for.

    Raises ConfigError for a name that no plugin announces for that.
    """
    known = plugins().parsers()
    return Family(
        reasoning=_choose("reasoning", reasoning, template, known),
        tools=_choose("tools", tools, template, known),
    )


def _choose(
    kind: Kind, name: str, template: str | None, known: Mapping[str, ParserSpec]
) -> ParserSpec | None:
    if name == NONE:
        return None
    able = {spec.name: spec for spec in known.values() if getattr(spec, kind)}
    if name != AUTO:
        if name not in able:
            raise ConfigError(
                f"there is no parser {name!r} for {kind}",
                hint=f"one of {', '.join([AUTO, NONE, *sorted(able)])}",
            )
        return able[name]
    found = [spec for spec in able.values() if template is not None and _detects(spec, template)]
    if len(found) > 1:
        names = ", ".join(spec.name for spec in found)
        log.warning("the chat template could be of several parsers for %s: %s", kind, names)
    return found[0] if len(found) == 1 else None


def _detects(spec: ParserSpec, template: str) -> bool:
    try:
        return spec.detects(template)
    except Exception:  # a stranger's code may do anything
        log.exception("the parser %s fails to look at a chat template", spec.name)
        return False


class Plain:
    """All is content."""

    def parse(self, text: str, *, final: bool = False) -> list[Event]:
        return [ContentDelta(text)] if text else []


class Chain:
    """A parser of reasoning, and one of tool calls for the content that it leaves."""

    def __init__(self, first: Parser, second: Parser) -> None:
        self._first = first
        self._second = second

    def parse(self, text: str, *, final: bool = False) -> list[Event]:
        events: list[Event] = []
        for event in self._first.parse(text, final=final):
            if isinstance(event, ContentDelta):
                events += self._second.parse(event.text)
            else:
                events.append(event)
        if final:
            events += self._second.parse("", final=True)
        return events
