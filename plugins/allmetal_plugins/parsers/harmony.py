"""gpt-oss's format: messages in channels.

Source: https://cookbook.openai.com/articles/openai-harmony.
"""

from __future__ import annotations

from collections.abc import Callable

from allmetal.parsing import Markers, ParserSpec
from allmetal.parsing.reader import Malformed, Reading
from allmetal.parsing.script import Script
from allmetal_plugins.parsers.json_calls import stream_object

_START, _CHANNEL, _MESSAGE = "<|start|>", "<|channel|>", "<|message|>"
_ENDS = ("<|end|>", "<|call|>", "<|return|>")
_TO = "to=functions."
_LONGEST = 256
"""Characters of a header."""


class Harmony(Script):
    """Analysis is reasoning; final, and commentary to nobody, are content."""

    def run(self) -> Reading[None]:
        while (yield from self.reader.peek()):
            header = yield from self._header()
            yield from self._message(header)
        self.end_text()

    def _header(self) -> Reading[str]:
        """`<|start|>ROLE<|channel|>NAME to=RECIPIENT<|message|>`, of which the prompt may have
        written the beginning.  Empty where there is none."""
        reader = self.reader
        first = yield from reader.see(_START, _CHANNEL, _MESSAGE, " to=", "to=", "assistant")
        if first is None:
            return ""
        self._marks += 1
        begin = reader.pos
        try:
            return (yield from reader.upto(_MESSAGE, most=_LONGEST))
        except Malformed:
            if first.startswith("<|") and len(reader.text) - begin <= _LONGEST:
                reader.pos = len(reader.text)  # it was cut off in here
            else:
                self.content(first)
                reader.pos = begin + len(first)
            return ""
        finally:
            self._marks -= 1

    def _message(self, header: str) -> Reading[None]:
        _, _, recipient = header.partition(_TO)
        name = recipient.split("<|")[0].split(" ")[0].strip()
        _, _, channel = header.partition(_CHANNEL)
        if name and self.context.tools:
            yield from self.attempt("", self._call(name))
            yield from self._body(self.content)
        elif channel.startswith("analysis") and self.context.reasoning:
            self.begin_text()
            yield from self._body(self.reasoning)
            self.begin_text()
        else:
            yield from self._body(self.content)

    def _call(self, name: str) -> Reading[None]:
        yield from self.reader.spaces()
        if (yield from self.reader.peek()) != "{":
            raise Malformed
        self.start(name)
        yield from stream_object(self)

    def _body(self, say: Callable[[str], None]) -> Reading[None]:
        found = yield from self.reader.until((*_ENDS, _START), say)
        if found is not None and found != _START:
            self.reader.pos += len(found)


SPECS = tuple(
    ParserSpec(
        name=name,
        make=Harmony,
        reasoning=True,
        tools=True,
        detects=detects,
        special_tokens=(_START, _CHANNEL, _MESSAGE, "<|constrain|>", *_ENDS),
        markers=Markers(
            start=f"{_CHANNEL}analysis{_MESSAGE}",
            end=f"{_CHANNEL}final{_MESSAGE}",
            forced_end=f"<|end|>{_START}assistant{_CHANNEL}final{_MESSAGE}",
            open=True,
        ),
    )
    for name, detects in (
        ("gpt_oss", lambda template: _CHANNEL in template and _MESSAGE in template),
        ("openai", lambda template: False),  # the same by the field's other name
    )
)
