"""Hermes's and Qwen's formats, which many models share.

Source: the chat templates of Hermes 2 Pro, Qwen2.5, Qwen3 and Qwen3-Coder.
"""

from __future__ import annotations

from allmetal.parsing import Markers, ParserSpec
from allmetal.parsing.reader import Malformed, Reading
from allmetal.parsing.script import Script
from allmetal_plugins.parsers.json_calls import call_objects
from allmetal_plugins.parsers.tagged import THINK, Format, Thoughts
from allmetal_plugins.parsers.xml_calls import Arguments

THINK_MARKERS = Markers(start="<think>", end="</think>")
_THOUGHTS = Thoughts(broken_by=("<tool_call>",))
"""Thinking models may call a tool without ending their thoughts."""
_OTHERS = ("<function=", "<arg_key>", "<|tool_call|>", "minimax", "<|tool_call_start|>")


def json_call(script: Script) -> Reading[None]:
    r"""`<tool_call>\n{"name": .., "arguments": {..}}\n</tool_call>`."""
    yield from call_objects(script)
    yield from script.soft("</tool_call>")


def xml_call(script: Script) -> Reading[None]:
    """`<tool_call><function=NAME><parameter=KEY>VALUE</parameter></function></tool_call>`."""
    yield from script.reader.spaces()
    yield from script.reader.expect("<function=")
    yield from xml_function(script)
    yield from script.soft("</tool_call>")


def xml_function(script: Script) -> Reading[None]:
    reader = script.reader
    name = (yield from reader.upto(">")).strip()
    if not name:
        raise Malformed
    script.start(name)
    arguments = Arguments(script, name)
    while True:
        yield from reader.spaces()
        found = yield from reader.take("<parameter=", "</function>", "</tool_call>")
        if found is None:
            raise Malformed
        if found != "<parameter=":
            arguments.end()
            return
        key = (yield from reader.upto(">")).strip()
        yield from reader.take("\r\n", "\n")
        yield from arguments.value(key, ("\n</parameter>", "</parameter>"))


def _is_hermes(template: str) -> bool:
    return (
        "<tool_call>" in template
        and "arguments" in template
        and not any(other in template for other in _OTHERS)
    )


def _is_xml(template: str) -> bool:
    return "<function=" in template and "<tool_call>" in template


def _thinks(template: str) -> bool:
    return "</think>" in template


def _only_thinks(template: str) -> bool:
    """And has none of the calls whose parser looks for thoughts too."""
    others = ("<tool_call>", "<tool_calls>", "<answer>", "｜", "section_begin|>", *_OTHERS)
    return _thinks(template) and not any(other in template for other in others)


JSON = {"<tool_call>": json_call}
XML = {"<tool_call>": xml_call, "<function=": xml_function}
SPECS = (
    ParserSpec(
        name="hermes",
        make=Format(calls=JSON),
        tools=True,
        detects=lambda template: _is_hermes(template) and not _thinks(template),
    ),
    ParserSpec(
        name="qwen3",
        make=Format(thoughts=_THOUGHTS, calls=JSON),
        reasoning=True,
        tools=True,
        detects=lambda template: _is_hermes(template) and _thinks(template),
        markers=THINK_MARKERS,
    ),
    ParserSpec(
        name="qwen3_coder",
        make=Format(thoughts=_THOUGHTS, calls=XML),
        reasoning=True,
        tools=True,
        detects=_is_xml,
        markers=THINK_MARKERS,
    ),
    ParserSpec(
        name="think",
        make=Format(thoughts=THINK),
        reasoning=True,
        detects=_only_thinks,
        markers=THINK_MARKERS,
    ),
)
