"""GLM's format, of 4.5 to 4.7.  Source: their chat templates."""

from __future__ import annotations

from allmetal.parsing import ParserSpec
from allmetal.parsing.reader import Malformed, Reading
from allmetal.parsing.script import Script
from allmetal_plugins.parsers.qwen import THINK_MARKERS
from allmetal_plugins.parsers.tagged import Format, Thoughts
from allmetal_plugins.parsers.xml_calls import Arguments

_END = "</tool_call>"


def _call(script: Script) -> Reading[None]:
    """`NAME<arg_key>KEY</arg_key><arg_value>VALUE</arg_value></tool_call>`, space between."""
    reader = script.reader
    parts: list[str] = []
    found = yield from reader.until(("<arg_key>", _END, "<tool_call>"), parts.append)
    name = "".join(parts).strip()
    if found not in ("<arg_key>", _END) or not name or len(name) > 256 or "\n" in name:
        raise Malformed
    script.start(name)
    arguments = Arguments(script, name)
    while (yield from reader.expect("<arg_key>", _END)) != _END:
        key = (yield from reader.upto("</arg_key>")).strip()
        yield from reader.spaces()
        yield from reader.expect("<arg_value>")
        yield from arguments.value(key, ("</arg_value>",))
        yield from reader.spaces()
    arguments.end()


SPECS = tuple(
    ParserSpec(
        name=name,
        make=Format(thoughts=Thoughts(broken_by=("<tool_call>",)), calls={"<tool_call>": _call}),
        reasoning=True,
        tools=True,
        detects=detects,
        markers=THINK_MARKERS,
        special_tokens=("<tool_call>", _END, "<arg_key>", "</arg_key>", "<think>", "</think>"),
    )
    for name, detects in (
        ("glm45", lambda template: "<arg_key>" in template),
        ("glm47", lambda template: False),  # which reads the same
    )
)
