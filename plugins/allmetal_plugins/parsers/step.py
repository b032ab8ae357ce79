"""Step3's format.  Source: its chat template.  (Step 3.5 writes as Qwen3-Coder does.)"""

from __future__ import annotations

from allmetal.parsing import ParserSpec
from allmetal.parsing.reader import Malformed, Reading
from allmetal.parsing.script import Script
from allmetal_plugins.parsers.qwen import THINK_MARKERS
from allmetal_plugins.parsers.tagged import Format, Thoughts
from allmetal_plugins.parsers.xml_calls import Arguments

_CALLS, _CALLS_END = "<｜tool_calls_begin｜>", "<｜tool_calls_end｜>"
_CALL, _CALL_END, _SEP = "<｜tool_call_begin｜>", "<｜tool_call_end｜>", "<｜tool_sep｜>"
_PARAMETER, _END = "<steptml:parameter name=", "</steptml:invoke>"


def _calls(script: Script) -> Reading[None]:
    while True:
        yield from script.reader.spaces()
        yield from script.reader.expect(_CALL)
        yield from _call(script)
        yield from script.soft(_CALLS_END)
        if (yield from script.reader.see(_CALL)) is None:
            return


def _call(script: Script) -> Reading[None]:
    """`function<sep><steptml:invoke name="f"><steptml:parameter name="k">v</..></..><end>`."""
    reader = script.reader
    yield from reader.upto(_SEP)
    yield from reader.spaces()
    yield from reader.expect("<steptml:invoke name=")
    name = (yield from reader.upto(">")).strip().strip("\"'")
    if not name:
        raise Malformed
    script.start(name)
    arguments = Arguments(script, name)
    while True:
        yield from reader.spaces()
        if (yield from reader.expect(_PARAMETER, _END)) == _END:
            break
        key = (yield from reader.upto(">")).strip().strip("\"'")
        yield from arguments.value(key, ("</steptml:parameter>",))
    arguments.end()
    yield from script.soft(_CALL_END)


SPECS = (
    ParserSpec(
        name="step3",
        make=Format(thoughts=Thoughts(broken_by=(_CALLS,)), calls={_CALLS: _calls, _CALL: _call}),
        reasoning=True,
        tools=True,
        detects=lambda template: _CALLS in template,
        special_tokens=(_CALLS, _CALLS_END, _CALL, _CALL_END, _SEP, "<think>", "</think>"),
        markers=THINK_MARKERS,
    ),
)
