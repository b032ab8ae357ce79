"""Calls whose parameters are marked one by one, with values as plain text."""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping
from typing import Any

from allmetal.parsing.reader import Malformed, Reading
from allmetal.parsing.script import Script, compact

_TYPES: Mapping[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "object": (dict,),
    "array": (list,),
    "null": (type(None),),
}


class Arguments:
    """Writes a call's arguments as one JSON object, parameter by parameter."""

    def __init__(self, script: Script, tool: str) -> None:
        self._script = script
        self._tool = tool
        self._num = 0

    def value(
        self, name: str, closers: tuple[str, ...], *, is_text: bool | None = None
    ) -> Reading[None]:
        """The text up to one of `closers`, which is stepped over, as what the tool's schema says
        it is.  A text goes on as it comes."""
        script, reader = self._script, self._script.reader
        allowed = {"string"} if is_text else types_of(script.parameter_schema(self._tool, name))
        script.arguments(("{" if self._num == 0 else ", ") + compact(name) + ": ")
        self._num += 1
        if allowed == {"string"}:
            script.arguments('"')
            found = yield from reader.until(closers, lambda t: script.arguments(_escaped(t)))
            script.arguments('"')
        else:
            parts: list[str] = []
            found = yield from reader.until(closers, parts.append)
            script.arguments(compact(typed("".join(parts), allowed)))
        if found is None:
            raise Malformed
        reader.pos += len(found)

    def end(self) -> None:
        self._script.arguments("}" if self._num else "{}")
        self._script.end()


def types_of(schema: Mapping[str, Any]) -> set[str]:
    """The JSON types that a parameter may have; all where the schema does not say."""
    found: set[str] = set()
    stated = schema.get("type")
    found |= {stated} if isinstance(stated, str) else set()
    found |= {t for t in stated if isinstance(t, str)} if isinstance(stated, list) else set()
    for key in ("anyOf", "oneOf", "allOf"):
        options = schema.get(key)
        for option in options if isinstance(options, list) else []:
            if isinstance(option, dict):
                found |= types_of(option)
    values = schema.get("enum")
    if not found and isinstance(values, list):
        found = {n for n, kinds in _TYPES.items() for v in values if type(v) in kinds}
    return found & _TYPES.keys() or set(_TYPES)


def typed(text: str, allowed: set[str]) -> object:
    """The value that a text stands for, of an allowed type; else the text itself."""
    kinds = tuple(kind for name in allowed for kind in _TYPES[name])
    for read in (json.loads, ast.literal_eval):
        try:
            value: object = read(text.strip())
            json.dumps(value, allow_nan=False)  # no tuples as keys, no infinity
        except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
            continue
        if type(value) in kinds and not isinstance(value, str):
            return value
        if isinstance(value, float) and value.is_integer() and "integer" in allowed:
            return int(value)
    words = {"true": True, "false": False} if "boolean" in allowed else {}
    return words.get(text.strip().lower(), text)


def _escaped(text: str) -> str:
    return compact(text)[1:-1]
