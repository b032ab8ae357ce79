"""Parsers written as one generator over the text: what all families have in common."""

from __future__ import annotations

import json
from collections.abc import Generator
from typing import Any

from allmetal.parsing.contract import (
    ContentDelta,
    Event,
    ParseContext,
    ReasoningDelta,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
)
from allmetal.parsing.reader import SPACE, Malformed, Reader, Reading

_MOST_FAILURES = 64
"""Of what began like a call and was none; after that no call is looked for."""


class Script:
    """A parser whose `run` reads the whole text from `self.reader`.

    A handler of calls may raise Malformed: before a call has begun, its text is content; after, it
    stays without an end, and what follows is content.
    """

    def __init__(self, context: ParseContext) -> None:
        self.context = context
        self.reader = Reader()
        self.num_calls = 0
        self._begun = False  # a call has, and is not whole
        self._resume = 0  # where to go on if what comes is no call
        self._events: list[Event] = []
        self._spaces = ""  # held until it is known whether a call follows
        self._lead = False  # drop space before what comes
        self._marks = 0
        self._failures = 0
        self._generator: Generator[None, None, None] | None = None

    def run(self) -> Reading[None]:
        raise NotImplementedError

    def parse(self, text: str, *, final: bool = False) -> list[Event]:
        """See Parser."""
        self.reader.feed(text, final=final)
        if self._generator is None:
            self._generator = self.run()
        next(self._generator, None)
        if not self._marks:
            self.reader.forget(self.reader.pos)
        events, self._events = self._events, []
        return events

    # ---- what was read -----------------------------------------------------------------------

    def content(self, text: str) -> None:
        """More of the answer.  Space at its end is held: before a call it is dropped."""
        if self._lead:
            text = text.lstrip(SPACE)
        if not text:
            return
        self._lead = False
        text = self._spaces + text
        kept = text.rstrip(SPACE)
        self._spaces = text[len(kept) :]
        self._say(ContentDelta, kept)

    def reasoning(self, text: str) -> None:
        """More of the thoughts; space around them is dropped."""
        if self._lead:
            text = text.lstrip(SPACE)
        if not text:
            return
        self._lead = False
        text = self._spaces + text
        kept = text.rstrip(SPACE)
        self._spaces = text[len(kept) :]
        self._say(ReasoningDelta, kept)

    def begin_text(self) -> None:
        """What comes is a text of its own: space before it, and of the one before, is dropped."""
        self._spaces, self._lead = "", True

    def end_text(self) -> None:
        """The output ends in content: what was held belongs to it."""
        self._say(ContentDelta, self._spaces)
        self._spaces = ""

    def start(self, name: str, call_id: str = "") -> None:
        """A call begins."""
        self._begun = True
        self._spaces = ""
        made = call_id or self.context.new_id()
        self._events.append(ToolCallStart(self.num_calls, made, name))
        self.num_calls += 1

    def arguments(self, text: str) -> None:
        index = self.num_calls - 1
        last = self._events[-1] if self._events else None
        if isinstance(last, ToolCallArguments) and last.index == index:
            self._events[-1] = ToolCallArguments(index, last.text + text)
        elif text:
            self._events.append(ToolCallArguments(index, text))

    def end(self) -> None:
        """The call is whole; space after it is dropped, unless content comes."""
        self._events.append(ToolCallEnd(self.num_calls - 1))
        self._begun, self._resume = False, self.reader.pos
        self._spaces, self._lead = "", True

    def whole_call(self, name: str, arguments: str, call_id: str = "") -> None:
        self.start(name, call_id)
        self.arguments(arguments)
        self.end()

    def _say(self, kind: type[ContentDelta] | type[ReasoningDelta], text: str) -> None:
        last = self._events[-1] if self._events else None
        if isinstance(last, kind):
            self._events[-1] = kind(last.text + text)
        elif text:
            self._events.append(kind(text))

    # ---- attempts ----------------------------------------------------------------------------

    def attempt(self, marker: str, handler: Reading[None]) -> Reading[None]:
        """Step over `marker`, which comes next, and let `handler` read what it opens."""
        self._begun = False
        self._marks += 1
        self.reader.pos += len(marker)
        self._resume = self.reader.pos
        before = self.num_calls
        try:
            yield from handler
        except Malformed:
            self._failures += 1
            if self.num_calls == before:
                self.content(marker)
            if not self._begun:
                self.reader.pos = self._resume
        finally:
            self._marks -= 1

    def soft(self, *closers: str) -> Reading[None]:
        """Step over space and one of `closers`, or a beginning of one that the end cuts off."""
        reader = self.reader
        yield from reader.spaces()
        found = yield from reader.take(*closers)
        rest = reader.text[reader.pos :]
        if found is None and reader.final and any(each.startswith(rest) for each in closers):
            reader.pos += len(rest)

    @property
    def gave_up(self) -> bool:
        return self._failures >= _MOST_FAILURES

    # ---- what the context says ---------------------------------------------------------------

    @property
    def tool_names(self) -> frozenset[str]:
        return frozenset(
            name
            for tool in self.context.tools
            if isinstance(name := _function(tool).get("name"), str)
        )

    def parameter_schema(self, tool: str, parameter: str) -> dict[str, Any]:
        """A parameter's JSON schema; empty where nothing is known of it."""
        for each in self.context.tools:
            function = _function(each)
            if function.get("name") == tool:
                schema = function.get("parameters")
                known = schema.get("properties") if isinstance(schema, dict) else None
                found = known.get(parameter) if isinstance(known, dict) else None
                return found if isinstance(found, dict) else {}
        return {}


def _function(tool: Any) -> dict[str, Any]:
    function = tool.get("function", tool) if hasattr(tool, "get") else {}
    return function if isinstance(function, dict) else {}


def compact(value: object) -> str:
    """JSON as arguments are written."""
    return json.dumps(value, ensure_ascii=False)
