"""Gemma 4's and FunctionGemma's formats.  (Gemma 3 writes Python: see `pythonic`.)

Source: their chat templates.
"""

from __future__ import annotations

import json
from collections.abc import Callable

from allmetal.parsing import Markers, ParserSpec
from allmetal.parsing.reader import SPACE, Malformed, Reading
from allmetal.parsing.script import Script, compact
from allmetal_plugins.parsers.tagged import Format, Handler, Thoughts

_DEEPEST = 64


def _call(quote: str, end: str) -> Handler:
    """`call:NAME{key:VALUE,..}` with texts between two `quote`s, then `end`."""

    def read(script: Script) -> Reading[None]:
        reader = script.reader
        yield from reader.spaces()
        yield from reader.expect("call:")
        name = (yield from reader.upto("{")).strip()
        if not name:
            raise Malformed
        script.start(name)
        script.arguments("{")
        yield from _members(script, quote, 0)
        script.end()
        yield from script.soft(end)

    return read


def _members(script: Script, quote: str, depth: int) -> Reading[None]:
    """Up to the brace that closes; keys are bare, or between quotes."""
    reader = script.reader
    yield from reader.spaces()
    if (yield from reader.take("}")):
        script.arguments("}")
        return
    while True:
        yield from reader.spaces()
        if (yield from reader.take(quote)):
            key = yield from reader.upto(quote)
            yield from reader.spaces()
            yield from reader.expect(":")
        else:
            key = (yield from reader.upto(":")).strip()
        script.arguments(compact(key) + ": ")
        yield from _value(script, quote, depth + 1)
        yield from reader.spaces()
        if (yield from reader.expect(",", "}")) == "}":
            script.arguments("}")
            return
        script.arguments(", ")


def _value(script: Script, quote: str, depth: int) -> Reading[None]:
    reader = script.reader
    if depth > _DEEPEST:
        raise Malformed
    yield from reader.spaces()
    opened = yield from reader.take(quote, "{", "[")
    if opened == quote:
        script.arguments('"')
        say: Callable[[str], None] = lambda text: script.arguments(compact(text)[1:-1])  # noqa: E731
        if (yield from reader.until((quote,), say)) is None:
            raise Malformed
        reader.pos += len(quote)
        script.arguments('"')
    elif opened == "{":
        script.arguments("{")
        yield from _members(script, quote, depth)
    elif opened == "[":
        script.arguments("[")
        yield from _items(script, quote, depth)
    else:
        parts: list[str] = []
        if (yield from reader.until((",", "}", "]"), parts.append)) is None:
            raise Malformed
        script.arguments(_bare("".join(parts)))


def _items(script: Script, quote: str, depth: int) -> Reading[None]:
    reader = script.reader
    yield from reader.spaces()
    if (yield from reader.take("]")):
        script.arguments("]")
        return
    while True:
        yield from _value(script, quote, depth + 1)
        yield from reader.spaces()
        if (yield from reader.expect(",", "]")) == "]":
            script.arguments("]")
            return
        script.arguments(", ")


def _bare(text: str) -> str:
    """A number, a word of JSON's, or else a text."""
    text = text.strip(SPACE)
    try:
        return json.dumps(json.loads(text), allow_nan=False)
    except ValueError:
        return "null" if text.lower() in ("none", "nil") else compact(text)


_CALL, _CALL_END, _QUOTE = "<|tool_call>", "<tool_call|>", '<|"|>'
_CHANNEL, _CHANNEL_END = "<|channel>", "<channel|>"
_F_CALL, _F_END, _F_QUOTE = "<start_function_call>", "<end_function_call>", "<escape>"
SPECS = (
    ParserSpec(
        name="gemma4",
        make=Format(
            thoughts=Thoughts(
                starts=(f"{_CHANNEL}thought\n", f"{_CHANNEL}thought", _CHANNEL),
                ends=(_CHANNEL_END,),
                broken_by=(_CALL,),
            ),
            calls={_CALL: _call(_QUOTE, _CALL_END)},
            dropped=(_CHANNEL_END,),
        ),
        reasoning=True,
        tools=True,
        detects=lambda template: _CALL in template,
        special_tokens=(_CALL, _CALL_END, _QUOTE, _CHANNEL, _CHANNEL_END),
        markers=Markers(start=_CHANNEL, end=_CHANNEL_END),
    ),
    ParserSpec(
        name="functiongemma",
        make=Format(calls={_F_CALL: _call(_F_QUOTE, _F_END)}),
        tools=True,
        detects=lambda template: _F_CALL in template,
        special_tokens=(_F_CALL, _F_END, _F_QUOTE),
    ),
)
