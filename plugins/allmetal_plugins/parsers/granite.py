"""Granite's formats: 3.x and 4, and the 20B that was trained for functions.

Source: their chat templates.
"""

from __future__ import annotations

from allmetal.parsing import Markers, ParserSpec
from allmetal.parsing.reader import Reading
from allmetal.parsing.script import Script
from allmetal_plugins.parsers.json_calls import call_objects
from allmetal_plugins.parsers.tagged import Format, Thoughts

_MARK, _TAG, _FUNCTION = "<|tool_call|>", "<tool_call>", "<function_call>"


def _calls(script: Script) -> Reading[None]:
    """A list of objects, or one object in a tag that ends (Granite 4)."""
    yield from script.soft(_TAG)  # 3.1 writes it after the token
    yield from call_objects(script)
    yield from script.soft("</tool_call>", "<|/tool_call|>", "</function_call>")


SPECS = (
    ParserSpec(
        name="granite",
        make=Format(
            thoughts=Thoughts(
                starts=(
                    "Here is my thought process:",
                    "Here's my thought process:",
                    "<think>",
                ),
                ends=("Here is my response:", "Here's my response:", "</think>"),
            ),
            calls={_MARK: _calls, _TAG: _calls},
            dropped=("<response>", "</response>"),
        ),
        reasoning=True,
        tools=True,
        detects=lambda template: _MARK in template and "functools" not in template,
        special_tokens=(_MARK, _TAG, "</tool_call>"),
        markers=Markers(start="Here is my thought process:", end="Here is my response:"),
    ),
    ParserSpec(
        name="granite_20b_fc",
        make=Format(calls={_FUNCTION: _calls}),
        tools=True,
        detects=lambda template: _FUNCTION in template,
        special_tokens=(_FUNCTION,),
    ),
)
