"""Calls written as JSON objects: a name and its arguments, under one key or another."""

from __future__ import annotations

import json
from typing import Any

from allmetal.parsing.reader import Malformed, Reading
from allmetal.parsing.script import Script, compact

_NAME = ("name", "function", "tool_name")
_ARGUMENTS = ("arguments", "parameters", "args", "input")


def call_object(script: Script, *, known_only: bool = False) -> Reading[None]:
    """`{"name": .., "arguments": {..}}`, keys in any order.  Arguments that come after the name
    are handed on as they come.  `known_only`: a tool that was not offered is no call."""
    reader = script.reader
    begun, name, call_id, held = False, "", "", ""
    yield from reader.expect("{")
    yield from reader.spaces()
    while True:
        key = yield from _captured(script)
        if not isinstance(key, str):
            raise Malformed
        yield from reader.spaces()
        yield from reader.expect(":")
        yield from reader.spaces()
        if key in _NAME and not name:
            name = yield from _name(script, known_only=known_only)
        elif key in _ARGUMENTS and name and not begun:
            yield from _arguments(script, name, call_id)
            begun = True
        elif key in _ARGUMENTS and not begun:
            held = yield from _held_arguments(script)
        else:
            other = yield from _captured(script)
            call_id = other if key == "id" and isinstance(other, str) else call_id
        yield from reader.spaces()
        if (yield from reader.expect(",", "}")) == "}":
            break
        yield from reader.spaces()
    if not name:
        raise Malformed
    if not begun:
        script.whole_call(name, held or "{}", call_id)


def call_list(script: Script, *, known_only: bool = False) -> Reading[None]:
    """`[{..}, {..}]`, at least one."""
    yield from script.reader.expect("[")
    while True:
        yield from script.reader.spaces()
        yield from call_object(script, known_only=known_only)
        yield from script.reader.spaces()
        if (yield from script.reader.expect(",", "]")) == "]":
            return


def call_objects(script: Script) -> Reading[None]:
    """Objects one after another, with space, commas or semicolons between; or a list of them."""
    reader = script.reader
    yield from reader.spaces()
    if (yield from reader.peek()) == "[":
        yield from call_list(script)
        return
    while True:
        yield from call_object(script)
        yield from reader.spaces()
        yield from reader.take(",", ";")
        yield from reader.spaces()
        if (yield from reader.peek()) != "{":
            return


def stream_object(script: Script) -> Reading[None]:
    """The arguments of a call that has begun, a JSON object, and the call's end."""
    yield from script.reader.spaces()
    if (yield from script.reader.peek()) != "{":
        raise Malformed
    yield from script.reader.json(script.arguments)
    script.end()


def _name(script: Script, *, known_only: bool) -> Reading[str]:
    name = yield from _captured(script)
    if isinstance(name, dict):  # {"function": {"name": ..}} says it one level deeper
        name = name.get("name")
    if not isinstance(name, str) or not name:
        raise Malformed
    if known_only and name not in script.tool_names:
        raise Malformed
    return name


def _arguments(script: Script, name: str, call_id: str) -> Reading[None]:
    if (yield from script.reader.peek()) == "{":
        script.start(name, call_id)
        yield from stream_object(script)
    else:
        held = yield from _held_arguments(script)
        script.whole_call(name, held, call_id)


def _held_arguments(script: Script) -> Reading[str]:
    """Arguments as a text, also where they are written as a text that holds JSON, or null."""
    value = yield from _captured(script)
    if isinstance(value, str):
        try:
            value = json.loads(value, strict=False) if value.strip() else {}
        except (ValueError, RecursionError):
            raise Malformed from None
    if value is None:
        value = {}
    if not isinstance(value, dict):
        raise Malformed
    return compact(value)


def _captured(script: Script) -> Reading[Any]:
    parts: list[str] = []
    yield from script.reader.json(parts.append)
    try:
        return json.loads("".join(parts))
    except (ValueError, RecursionError):
        raise Malformed from None
