"""Hunyuan A13B's format.  Source: its chat template."""

from __future__ import annotations

from allmetal.parsing import Markers, ParserSpec
from allmetal.parsing.reader import Reading
from allmetal.parsing.script import Script
from allmetal_plugins.parsers.json_calls import call_objects
from allmetal_plugins.parsers.tagged import Format, Thoughts

_CALLS, _CALLS_END = "<tool_calls>", "</tool_calls>"


def _list(script: Script) -> Reading[None]:
    yield from call_objects(script)
    yield from script.soft(_CALLS_END)


SPECS = (
    ParserSpec(
        name="hunyuan_a13b",
        make=Format(
            thoughts=Thoughts(broken_by=(_CALLS,)),
            calls={_CALLS: _list},
            dropped=("<answer>\n", "<answer>", "\n</answer>", "</answer>"),
        ),
        reasoning=True,
        tools=True,
        detects=lambda template: "<answer>" in template and "</think>" in template,
        markers=Markers(start="<think>", end="</think>", forced_end="\n</think>\n<answer>\n"),
    ),
)
