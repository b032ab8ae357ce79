"""Kimi K2's format.  Source: the chat templates of Kimi-K2-Instruct and K2-Thinking."""

from __future__ import annotations

from allmetal.parsing import ParserSpec
from allmetal.parsing.reader import Malformed, Reading
from allmetal.parsing.script import Script
from allmetal_plugins.parsers.json_calls import stream_object
from allmetal_plugins.parsers.qwen import THINK_MARKERS
from allmetal_plugins.parsers.tagged import Format, Thoughts

_SECTION, _SECTION_END = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
_CALL, _CALL_END = "<|tool_call_begin|>", "<|tool_call_end|>"
_ARGUMENTS = "<|tool_call_argument_begin|>"


def _section(script: Script) -> Reading[None]:
    while True:
        yield from script.reader.spaces()
        yield from script.reader.expect(_CALL)
        yield from _call(script)
        yield from script.soft(_SECTION_END)
        if (yield from script.reader.see(_CALL)) is None:
            return


def _call(script: Script) -> Reading[None]:
    """`functions.NAME:INDEX<|tool_call_argument_begin|>{..}`; what stands first is the id."""
    reader = script.reader
    call_id = (yield from reader.upto(_ARGUMENTS)).strip()
    name = call_id.rpartition(":")[0] or call_id
    name = name.removeprefix("functions.")
    yield from reader.spaces()
    if not name or (yield from reader.peek()) != "{":
        raise Malformed
    script.start(name, call_id)
    yield from stream_object(script)
    yield from script.soft(_CALL_END)


SPECS = (
    ParserSpec(
        name="kimi_k2",
        make=Format(
            thoughts=Thoughts(
                starts=("<think>", "◁think▷"),
                ends=("</think>", "◁/think▷"),
                broken_by=(_SECTION,),
            ),
            calls={_SECTION: _section, _CALL: _call},
        ),
        reasoning=True,
        tools=True,
        detects=lambda template: _SECTION in template,
        special_tokens=(_SECTION, _SECTION_END, _CALL, _CALL_END, _ARGUMENTS),
        markers=THINK_MARKERS,
    ),
)
