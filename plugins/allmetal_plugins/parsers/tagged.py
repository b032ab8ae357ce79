"""The common shape: thoughts between two marks, then an answer with marked calls in it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

from allmetal.parsing.contract import ParseContext
from allmetal.parsing.reader import SPACE, Reading
from allmetal.parsing.script import Script

Handler: TypeAlias = Callable[[Script], Reading[None]]
"""Reads what a mark opens; the mark has been stepped over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Thoughts:
    """How thoughts are marked; of alternatives a longer one stands first.

    `open`: they begin unmarked, unless the prompt closed them.  `broken_by`: marks that end them
    too, and belong to what follows.
    """

    starts: tuple[str, ...] = ("<think>",)
    ends: tuple[str, ...] = ("</think>",)
    open: bool = False
    broken_by: tuple[str, ...] = ()


THINK = Thoughts()


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """`calls`: mark -> what reads a call after it.  `first`: a call that stands unmarked at the
    answer's beginning.  `dropped`: marks that mean nothing to a reader.  `new_id`: what a family
    makes of a new call's id."""

    thoughts: Thoughts | None = None
    calls: Mapping[str, Handler] | None = None
    first: Handler | None = None
    dropped: tuple[str, ...] = ()
    new_id: Callable[[str], str] | None = None

    def __call__(self, context: ParseContext) -> Tagged:
        shape = self.new_id
        if shape is not None:
            new_id = context.new_id
            context = replace(context, new_id=lambda: shape(new_id()))
        return Tagged(self, context)


class Tagged(Script):
    def __init__(self, format: Format, context: ParseContext) -> None:
        super().__init__(context)
        self._format = format

    def run(self) -> Reading[None]:
        thoughts = self._format.thoughts
        if thoughts is not None and self.context.reasoning:
            yield from self._think(thoughts)
        first = self._format.first
        if first is not None and self.context.tools:
            yield from self._try_first(first)
        yield from self._answer()

    def _think(self, thoughts: Thoughts) -> Reading[None]:
        if not (yield from self._thinks(thoughts)):
            return
        self.begin_text()
        found = yield from self.reader.until((*thoughts.ends, *thoughts.broken_by), self.reasoning)
        if found in thoughts.ends:
            self.reader.pos += len(found or "")
        self.begin_text()

    def _thinks(self, thoughts: Thoughts) -> Reading[bool]:
        """Whether thoughts come; their first mark is stepped over."""
        before = self.context.prompt_end.rstrip(SPACE)
        if any(before.endswith(mark.strip(SPACE)) for mark in thoughts.starts):
            return True
        closed = any(before.endswith(mark.strip(SPACE)) for mark in thoughts.ends)
        self._marks += 1
        begin = self.reader.pos
        yield from self.reader.spaces()
        found = yield from self.reader.take(*thoughts.starts)
        if found is None:
            self.reader.pos = begin
        self._marks -= 1
        return found is not None or (thoughts.open and not closed)

    def _try_first(self, first: Handler) -> Reading[None]:
        self._marks += 1
        begin = self.reader.pos
        yield from self.reader.spaces()
        before = self.num_calls
        yield from self.attempt("", first(self))
        if self.num_calls == before:
            self.reader.pos = begin
        self._marks -= 1

    def _answer(self) -> Reading[None]:
        calls = self._format.calls if self._format.calls and self.context.tools else {}
        dropped = self._format.dropped
        while True:
            markers = dropped if self.gave_up else (*calls, *dropped)
            found = yield from self.reader.until(markers, self.content)
            if found is None:
                self.end_text()
                return
            if found in calls:
                yield from self.attempt(found, calls[found](self))
            else:
                self.reader.pos += len(found)
