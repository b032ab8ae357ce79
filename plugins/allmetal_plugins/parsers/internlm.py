"""InternLM's format, of 2.5 and 3.  Source: their chat templates."""

from __future__ import annotations

from allmetal.parsing import ParserSpec
from allmetal.parsing.reader import Reading
from allmetal.parsing.script import Script
from allmetal_plugins.parsers.json_calls import call_object
from allmetal_plugins.parsers.qwen import THINK_MARKERS
from allmetal_plugins.parsers.tagged import THINK, Format

_BEGIN, _PLUGIN, _END = "<|action_start|>", "<|plugin|>", "<|action_end|>"


def _action(script: Script) -> Reading[None]:
    yield from script.reader.spaces()
    yield from script.reader.expect(_PLUGIN)
    yield from script.reader.spaces()
    yield from call_object(script)
    yield from script.soft(_END)


SPECS = (
    ParserSpec(
        name="internlm",
        make=Format(thoughts=THINK, calls={_BEGIN: _action}, dropped=(_END,)),
        reasoning=True,
        tools=True,
        detects=lambda template: _BEGIN in template or "<|plugin|>" in template,
        special_tokens=(_BEGIN, _PLUGIN, _END),
        markers=THINK_MARKERS,
    ),
)
