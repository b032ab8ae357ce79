"""Calls written as Python: `[weather(city="Ulm", days=3), time()]`."""

from __future__ import annotations

import ast
import json

from allmetal.parsing.reader import Malformed, Reading
from allmetal.parsing.script import Script, compact

_NAME = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-")
_PAIRS = {"(": ")", "[": "]", "{": "}"}
_LONGEST_NAME = 256


def call_list(script: Script) -> Reading[None]:
    """Calls in square brackets, at least one; all of tools that were offered."""
    reader = script.reader
    yield from reader.expect("[")
    while True:
        yield from reader.spaces()
        yield from call(script)
        yield from reader.spaces()
        if (yield from reader.expect(",", "]")) == "]":
            return


def call(script: Script) -> Reading[None]:
    """`name(key=value, ..)`; each value goes on when it is whole."""
    reader = script.reader
    name = yield from _name(script)
    if name not in script.tool_names:
        raise Malformed
    yield from reader.spaces()
    yield from reader.expect("(")
    yield from reader.spaces()
    # Not begun before the first argument is: `f(x)` in a text is no call.
    written = "{"
    if (yield from reader.take(")")) is None:
        while True:
            key = yield from _name(script)
            yield from reader.spaces()
            yield from reader.expect("=")
            source, end = yield from _source(script)
            written += compact(key) + ": " + _as_json(source)
            if written.startswith("{"):
                script.start(name)
            script.arguments(written)
            written = ", "
            yield from reader.spaces()
            if end == ")" or (yield from reader.take(")")):
                break
        script.arguments("}")
    else:
        script.start(name)
        script.arguments("{}")
    script.end()


def _name(script: Script) -> Reading[str]:
    name = ""
    while (char := (yield from script.reader.peek())) in _NAME and char:
        name += char
        script.reader.pos += 1
        if len(name) > _LONGEST_NAME:
            raise Malformed
    if not name:
        raise Malformed
    return name


def _source(script: Script) -> Reading[tuple[str, str]]:
    """A value's source up to the comma or bracket after it, which is stepped over."""
    reader = script.reader
    source: list[str] = []
    expected: list[str] = []
    quote = ""
    while char := (yield from reader.peek()):
        reader.pos += 1
        if quote:
            if char == "\\":
                source.append(char)
                char = yield from reader.peek()
                reader.pos += len(char)
            elif char == quote:
                quote = ""
        elif char in "'\"":
            quote = char
        elif char in _PAIRS:
            expected.append(_PAIRS[char])
        elif expected and char == expected[-1]:
            expected.pop()
        elif not expected and char in ",)":
            return "".join(source), char
        source.append(char)
    raise Malformed


def _as_json(source: str) -> str:
    text = source.strip()
    for read in (ast.literal_eval, json.loads):
        try:
            return json.dumps(read(text), ensure_ascii=False, allow_nan=False)
        except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
            continue
    raise Malformed
