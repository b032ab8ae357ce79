"""Llama's formats, as JSON and as Python.

Source: the chat templates of Llama 3.1, 3.2, 3.3 and 4.
"""

from __future__ import annotations

from allmetal.parsing import ParserSpec
from allmetal.parsing.reader import Reading
from allmetal.parsing.script import Script
from allmetal_plugins.parsers import python_calls
from allmetal_plugins.parsers.json_calls import call_list, call_object
from allmetal_plugins.parsers.tagged import Format


def _objects(script: Script) -> Reading[None]:
    """`{"name": .., "parameters": {..}}`, several with semicolons between, or a list."""
    reader = script.reader
    yield from reader.spaces()
    if (yield from reader.peek()) == "[":
        yield from call_list(script, known_only=True)
        return
    while True:
        yield from call_object(script, known_only=True)
        if (yield from _next(script, ";", ",", "<|python_tag|>")) is None:
            return
        yield from reader.spaces()


def _list(script: Script) -> Reading[None]:
    """What an output is held to where a call is demanded."""
    yield from script.reader.spaces()
    yield from call_list(script, known_only=True)


def _next(script: Script, *separators: str) -> Reading[str | None]:
    """What stands between two calls, stepped over."""
    reader = script.reader
    begin = reader.pos
    yield from reader.spaces()
    found = yield from reader.take(*separators)
    if found is None:
        reader.pos = begin
    return found


def _pythonic(script: Script) -> Reading[None]:
    yield from script.reader.spaces()
    yield from python_calls.call_list(script)
    yield from script.soft("<|python_end|>")


def _code_block(script: Script) -> Reading[None]:
    r"""Gemma 3's ```` ```tool_code\nf(x=1)\n``` ````, one call or a list of them."""
    yield from script.reader.spaces()
    if (yield from script.reader.peek()) == "[":
        yield from python_calls.call_list(script)
    else:
        yield from python_calls.call(script)
    yield from script.soft("```")


def _json(template: str) -> bool:
    return '"parameters"' in template and "<|start_header_id|>" in template


def _json4(template: str) -> bool:
    return '"parameters"' in template and "<|header_start|>" in template


SPECS = (
    ParserSpec(name="json_calls", make=Format(first=_list), tools=True),
    ParserSpec(
        name="llama3_json",
        make=Format(first=_objects, calls={"<|python_tag|>": _objects}),
        tools=True,
        detects=_json,
        special_tokens=("<|python_tag|>",),
    ),
    ParserSpec(
        name="llama4_json",
        make=Format(
            first=_objects,
            calls={"<|python_start|>": _objects, "<|python_tag|>": _objects},
            dropped=("<|python_end|>",),
        ),
        tools=True,
        detects=lambda template: _json4(template) and "[func_name1(" not in template,
        special_tokens=("<|python_start|>", "<|python_end|>"),
    ),
    ParserSpec(
        name="llama4_pythonic",
        make=Format(first=_pythonic, calls={"<|python_start|>": _pythonic}),
        tools=True,
        detects=lambda template: "<|header_start|>" in template and "[func_name1(" in template,
        special_tokens=("<|python_start|>", "<|python_end|>"),
    ),
    ParserSpec(
        name="pythonic",
        make=Format(first=_pythonic, calls={"```tool_code": _code_block}),
        tools=True,
        detects=lambda template: "[func_name1(" in template and "<|header_start|>" not in template,
    ),
    ParserSpec(
        name="lfm2",
        make=Format(calls={"<|tool_call_start|>": _pythonic}, dropped=("<|tool_call_end|>",)),
        tools=True,
        detects=lambda template: "<|tool_call_start|>" in template,
        special_tokens=("<|tool_call_start|>", "<|tool_call_end|>"),
    ),
)
