"""Mistral's formats: a list of JSON objects before tokenizer 11, then a name and its arguments.

Source: mistral-common's instruct tokenizers, versions 3 to 13.
"""

from __future__ import annotations

from allmetal.parsing import Markers, ParserSpec
from allmetal.parsing.reader import SPACE, Malformed, Reading
from allmetal.parsing.script import Script
from allmetal_plugins.parsers.json_calls import call_list, stream_object
from allmetal_plugins.parsers.tagged import Format, Thoughts

_ID_LENGTH = 9
"""What Mistral's templates demand of a call's id: so many letters and digits."""


def _calls(script: Script) -> Reading[None]:
    """`[{"name": .., "arguments": {..}}]`, or `NAME[ARGS]{..}`, with `[CALL_ID]ID` between."""
    reader = script.reader
    yield from reader.spaces()
    if (yield from reader.peek()) == "[":
        yield from call_list(script)
        return
    call_id = ""
    name, end = yield from _name(script)
    if end == "[CALL_ID]":
        call_id = (yield from reader.upto("[ARGS]")).strip()
    yield from reader.spaces()
    if (yield from reader.peek()) != "{":
        raise Malformed
    script.start(name, call_id)
    yield from stream_object(script)


def _name(script: Script) -> Reading[tuple[str, str]]:
    """A tool's name, and what ended it; a brace is not stepped over."""
    reader = script.reader
    parts: list[str] = []
    end = yield from reader.until(("[CALL_ID]", "[ARGS]", "{", "[TOOL_CALLS]"), parts.append)
    name = "".join(parts).strip(SPACE)
    if end is None or end == "[TOOL_CALLS]" or not name or len(name) > 256 or "\n" in name:
        raise Malformed
    if end != "{":
        reader.pos += len(end)
    return name, end


def _short(new_id: str) -> str:
    return "".join(filter(str.isalnum, new_id))[-_ID_LENGTH:]


SPECS = (
    ParserSpec(
        name="mistral",
        make=Format(
            thoughts=Thoughts(starts=("[THINK]",), ends=("[/THINK]",)),
            calls={"[TOOL_CALLS]": _calls},
            new_id=_short,
        ),
        reasoning=True,
        tools=True,
        detects=lambda template: "[TOOL_CALLS]" in template,
        special_tokens=("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "[THINK]", "[/THINK]"),
        markers=Markers(start="[THINK]", end="[/THINK]"),
    ),
)
