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


def is_hunyuan(template: str) -> bool:
    """Told from others that write the same marks by its turns, or by its marked answers."""
    marked = _CALLS in template or "</think>" in template
    return marked and ("<|extra_0|>" in template or "<answer>" in template)


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
        detects=is_hunyuan,
        markers=Markers(start="<think>", end="</think>", forced_end="\n</think>\n<answer>\n"),
    ),
)
