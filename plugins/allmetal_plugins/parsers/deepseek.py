"""DeepSeek's formats: R1, V3, V3.1 and V3.2.

Source: the chat templates of DeepSeek-R1-0528, V3-0324 and V3.1, and V3.2's encoding script.
"""

from __future__ import annotations

from allmetal.parsing import Markers, ParserSpec
from allmetal.parsing.reader import Malformed, Reading
from allmetal.parsing.script import Script
from allmetal_plugins.parsers.json_calls import stream_object
from allmetal_plugins.parsers.tagged import Format, Thoughts
from allmetal_plugins.parsers.xml_calls import Arguments

_CALLS, _CALLS_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
_CALL, _CALL_END, _SEP = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁sep｜>"
_DSML = ("<｜DSML｜function_calls>", "<｜DSML｜tool_calls>")
_DSML_END = ("</｜DSML｜function_calls>", "</｜DSML｜tool_calls>")
_INVOKE, _INVOKE_END = '<｜DSML｜invoke name="', "</｜DSML｜invoke>"
_PARAMETER, _PARAMETER_END = '<｜DSML｜parameter name="', "</｜DSML｜parameter>"


def _calls(script: Script) -> Reading[None]:
    while True:
        yield from script.reader.spaces()
        yield from script.reader.expect(_CALL)
        yield from _call(script)
        yield from script.soft(_CALLS_END)
        if (yield from script.reader.see(_CALL)) is None:
            return


def _call(script: Script) -> Reading[None]:
    """V3.1: `NAME<sep>{..}`.  Before: a type, `<sep>`, the name, and the arguments fenced."""
    reader = script.reader
    name = (yield from reader.upto(_SEP)).strip()
    yield from reader.spaces()
    fenced = (yield from reader.peek()) != "{"
    if fenced:
        name = (yield from reader.upto("\n")).strip()
        yield from reader.spaces()
        yield from reader.expect("```json", "```")
        yield from reader.spaces()
    if not name or (yield from reader.peek()) != "{":
        raise Malformed
    script.start(name)
    yield from stream_object(script)
    if fenced:
        yield from script.soft("```")
    yield from script.soft(_CALL_END)


def _dsml(script: Script) -> Reading[None]:
    """`<invoke name="f"><parameter name="k" string="true|false">..`, each tag marked as DSML."""
    reader = script.reader
    while True:
        yield from reader.spaces()
        yield from reader.expect(_INVOKE)
        name = yield from reader.upto('"')
        yield from reader.spaces()
        yield from reader.expect(">")
        yield from _dsml_parameters(script, name)
        yield from script.soft(*_DSML_END)
        if (yield from reader.see(_INVOKE)) is None:
            return


def _dsml_parameters(script: Script, name: str) -> Reading[None]:
    reader = script.reader
    script.start(name)
    arguments = Arguments(script, name)
    while True:
        yield from reader.spaces()
        if (yield from reader.expect(_PARAMETER, _INVOKE_END)) == _INVOKE_END:
            arguments.end()
            return
        key = yield from reader.upto('"')
        rest = yield from reader.upto(">")
        is_text = True if 'string="true"' in rest else None
        yield from arguments.value(key, (_PARAMETER_END,), is_text=is_text)


_MARKERS = Markers(start="<think>", end="</think>", open=True)
_THOUGHTS = Thoughts(open=True)
_TOKENS = (_CALLS, _CALLS_END, _CALL, _CALL_END, _SEP)
SPECS = (
    ParserSpec(
        name="deepseek_r1",
        make=Format(thoughts=_THOUGHTS),
        reasoning=True,
        detects=lambda template: "｜Assistant｜" in template and "</think>" in template,
        markers=_MARKERS,
    ),
    *(
        ParserSpec(
            name=name,
            make=Format(calls={_CALLS: _calls, _CALL: _call}),
            tools=True,
            detects=detects,
            special_tokens=_TOKENS,
        )
        for name, detects in (
            ("deepseek_v3", lambda template: _CALLS in template),
            ("deepseek_v31", lambda template: False),  # which reads the same
        )
    ),
    ParserSpec(
        name="deepseek_v32",
        make=Format(calls=dict.fromkeys(_DSML, _dsml)),
        tools=True,
        detects=lambda template: "｜DSML｜" in template,
    ),
)
