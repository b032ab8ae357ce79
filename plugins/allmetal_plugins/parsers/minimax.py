"""MiniMax's formats, of M1 and M2.  Source: their chat templates."""

from __future__ import annotations

from allmetal.parsing import ParserSpec
from allmetal.parsing.reader import Malformed, Reading
from allmetal.parsing.script import Script
from allmetal_plugins.parsers.hunyuan import is_hunyuan
from allmetal_plugins.parsers.json_calls import call_objects
from allmetal_plugins.parsers.qwen import THINK_MARKERS
from allmetal_plugins.parsers.tagged import Format, Thoughts
from allmetal_plugins.parsers.xml_calls import Arguments

_M2, _M2_END = "<minimax:tool_call>", "</minimax:tool_call>"
_M1, _M1_END = "<tool_calls>", "</tool_calls>"


def _invokes(script: Script) -> Reading[None]:
    """`<invoke name="NAME"><parameter name="KEY">VALUE</parameter></invoke>`, one or more."""
    reader = script.reader
    while True:
        yield from reader.spaces()
        yield from reader.expect("<invoke name=")
        name = (yield from reader.upto(">")).strip().strip("\"'")
        if not name:
            raise Malformed
        script.start(name)
        yield from _parameters(script, Arguments(script, name))
        yield from script.soft(_M2_END)
        if (yield from reader.see("<invoke name=")) is None:
            return


def _parameters(script: Script, arguments: Arguments) -> Reading[None]:
    reader = script.reader
    while True:
        yield from reader.spaces()
        if (yield from reader.expect("<parameter name=", "</invoke>")) == "</invoke>":
            arguments.end()
            return
        key = (yield from reader.upto(">")).strip().strip("\"'")
        yield from arguments.value(key, ("</parameter>",))


def _objects(script: Script) -> Reading[None]:
    yield from call_objects(script)
    yield from script.soft(_M1_END)


SPECS = (
    ParserSpec(
        name="minimax_m2",
        make=Format(thoughts=Thoughts(broken_by=(_M2,)), calls={_M2: _invokes}),
        reasoning=True,
        tools=True,
        detects=lambda template: "minimax:tool_call" in template,
        special_tokens=(_M2, _M2_END, "<think>", "</think>"),
        markers=THINK_MARKERS,
    ),
    ParserSpec(
        name="minimax",
        make=Format(thoughts=Thoughts(broken_by=(_M1,)), calls={_M1: _objects}),
        reasoning=True,
        tools=True,
        detects=lambda template: _M1 in template and not is_hunyuan(template),
        markers=THINK_MARKERS,
    ),
)
