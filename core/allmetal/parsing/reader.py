"""Text that comes in pieces, read as if it were whole.

A parser is written as a generator that reads from the beginning to the end, and stops where more
is needed.  No step depends on where the text was cut: each waits until what it asks is certain.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TypeVar

from allmetal.parsing.json_text import JSONText

T = TypeVar("T")
Reading = Generator[None, None, T]
"""Work that stops where text is missing; `yield from` it."""

Emit = Callable[[str], None]
SPACE = " \t\r\n"


class Malformed(Exception):
    """What comes is not of the format, or the text has ended within it."""


class Reader:
    """`text[pos:]` is still to be read; what lies before `kept` may be forgotten."""

    def __init__(self) -> None:
        self.text = ""
        self.pos = 0
        self.final = False

    def feed(self, text: str, *, final: bool) -> None:
        self.text += text
        self.final = final

    def forget(self, end: int) -> int:
        """Drop what lies before `end`; by how much positions have moved."""
        self.text = self.text[end:]
        self.pos -= end
        return end

    def more(self) -> Reading[bool]:
        """Wait for more text; False when there is none."""
        if self.final:
            return False
        yield
        return True

    def see(self, *options: str) -> Reading[str | None]:
        """The first of `options` that comes next; "" is none."""
        while True:
            certain = True
            for option in options:
                if self.text.startswith(option, self.pos):
                    if certain:
                        return option
                elif option.startswith(self.text[self.pos :]):
                    certain = False  # it may still become this one
            if certain or not (yield from self.more()):
                break
        return next((o for o in options if self.text.startswith(o, self.pos)), None)

    def take(self, *options: str) -> Reading[str | None]:
        """`see`, and step over it."""
        found = yield from self.see(*options)
        self.pos += len(found or "")
        return found

    def expect(self, *options: str) -> Reading[str]:
        found = yield from self.take(*options)
        if found is None:
            raise Malformed
        return found

    def spaces(self) -> Reading[None]:
        while True:
            while self.pos < len(self.text) and self.text[self.pos] in SPACE:
                self.pos += 1
            if self.pos < len(self.text) or not (yield from self.more()):
                return

    def peek(self) -> Reading[str]:
        """The next character, or "" at the end."""
        while self.pos == len(self.text):
            if not (yield from self.more()):
                return ""
        return self.text[self.pos]

    def until(self, markers: tuple[str, ...], emit: Emit) -> Reading[str | None]:
        """Hand on text up to the first marker, as far as it is certain, and stop before the
        marker.  None: the text has ended, and all of it was handed on.

        Of markers that begin at one place the first given counts.
        """
        while True:
            found = [at for m in markers if (at := self.text.find(m, self.pos)) >= 0]
            first = min(found, default=None)
            held = (
                len(self.text)
                if self.final
                else min(map(self._held, markers), default=len(self.text))
            )
            if first is not None and (held > first or (held == first and self._decided(markers))):
                self._hand_on(first, emit)
                return next(m for m in markers if self.text.startswith(m, first))
            self._hand_on(held if first is None else min(held, first), emit)
            if not (yield from self.more()):
                return None

    def _hand_on(self, end: int, emit: Emit) -> None:
        if end > self.pos:
            emit(self.text[self.pos : end])
            self.pos = end

    def _held(self, marker: str) -> int:
        """Where the text's end may be the beginning of `marker`."""
        text = self.text
        for size in range(min(len(marker) - 1, len(text) - self.pos), 0, -1):
            if text.endswith(marker[:size]):
                return len(text) - size
        return len(text)

    def _decided(self, markers: tuple[str, ...]) -> bool:
        """Whether of the markers that may begin where one is found, the first is known."""
        at = min(at for m in markers if (at := self.text.find(m, self.pos)) >= 0)
        rest = self.text[at:]
        for marker in markers:
            if rest.startswith(marker):
                return True
            if marker.startswith(rest):
                return False
        return False

    def upto(self, *ends: str, most: int = 256) -> Reading[str]:
        """The text before the first of `ends`, which is stepped over.  Malformed if none comes
        within `most` characters."""
        while True:
            found = [(at, e) for e in ends if (at := self.text.find(e, self.pos)) >= 0]
            at, end = min(found, default=(len(self.text), ""))
            # While none is found, one that begins in time may still be coming in.
            late = 0 if found else max(map(len, ends))
            if at > self.pos + most + late:
                raise Malformed
            if found:
                text = self.text[self.pos : at]
                self.pos = at + len(end)
                return text
            if not (yield from self.more()):
                raise Malformed

    def json(self, emit: Emit) -> Reading[None]:
        """Hand on one JSON value as it comes, mended where that is safe (see JSONText)."""
        value = JSONText()
        while True:
            self.pos, out = value.feed(self.text, self.pos)
            if out:
                emit(out)
            if value.bad:
                raise Malformed
            if value.done:
                return
            if not (yield from self.more()):
                break
        if out := value.finish():
            emit(out)
        if value.bad:
            raise Malformed
