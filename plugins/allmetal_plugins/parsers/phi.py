"""Phi-4-mini's format.  Source: its chat template and model card."""

from __future__ import annotations

from allmetal.parsing import ParserSpec
from allmetal.parsing.reader import Reading
from allmetal.parsing.script import Script
from allmetal_plugins.parsers.json_calls import call_list
from allmetal_plugins.parsers.tagged import Format

_MARK, _END = "<|tool_call|>", "<|/tool_call|>"


def _calls(script: Script) -> Reading[None]:
    yield from script.reader.spaces()
    yield from call_list(script)
    yield from script.soft(_END)


SPECS = (
    ParserSpec(
        name="phi4_mini_json",
        make=Format(calls={"functools": _calls, _MARK: _calls}),
        tools=True,
        detects=lambda template: "functools" in template or "<|tool|>" in template,
        special_tokens=(_MARK, _END),
    ),
)
