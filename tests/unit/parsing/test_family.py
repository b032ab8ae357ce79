"""Which parsers a model gets: by its chat template where that is certain, else by name."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from allmetal.errors import ConfigError
from allmetal.parsing import (
    ContentDelta,
    ParseContext,
    ReasoningDelta,
    collect,
    family_for,
)
from allmetal.parsing import family as family_module
from allmetal.plugins.manager import plugins

from .examples import TOOLS, call

HERMES = '<tool_call>\n{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call>'
# The lines of published templates by which they are known -> tools, reasoning.
TEMPLATES = [
    ("{{ message.content }}", None, None),
    (HERMES, "hermes", None),
    (HERMES + "{{ content.split('</think>')[-1] }}", "qwen3", "qwen3"),
    ("<tool_call>\n<function=example_function_name>\n<parameter=x>", "qwen3_coder", "qwen3_coder"),
    (
        '<|start_header_id|>ipython{{ \'{"name": \' }}"parameters": dictionary',
        "llama3_json",
        None,
    ),
    ('<|header_start|>{"name": function name, "parameters": dictionary}', "llama4_json", None),
    ("<|header_start|>[func_name1(params_name1=params_value1)]", "llama4_pythonic", None),
    ("<start_of_turn>[func_name1(params_name1=params_value1)]", "pythonic", None),
    ("[AVAILABLE_TOOLS][/AVAILABLE_TOOLS][TOOL_CALLS]", "mistral", "mistral"),
    ("<｜Assistant｜>{{ content.split('</think>')[-1] }}", None, "deepseek_r1"),
    ("<｜Assistant｜></think><｜tool▁calls▁begin｜>", "deepseek_v3", "deepseek_r1"),
    ("<|start|>assistant<|channel|>analysis<|message|>", "gpt_oss", "gpt_oss"),
    ("<tool_call>{{ tc.name }}\n<arg_key>{{ k }}</arg_key></think>", "glm45", "glm45"),
    ("<think>{{rc}}</think><|tool_calls_section_begin|>", "kimi_k2", "kimi_k2"),
    (
        "{%- set toolcall_begin_token = '<minimax:tool_call>' -%}</think>",
        "minimax_m2",
        "minimax_m2",
    ),
    ("<tool_calls></tool_calls>", "minimax", "minimax"),
    ("<|start_of_role|>assistant<|tool_call|>", "granite", "granite"),
    ("<|tool_call>call:{{ name }}<tool_call|>", "gemma4", "gemma4"),
    ("<start_function_call>call:", "functiongemma", None),
    ("prefix function calls with functools marker", "phi4_mini_json", None),
    ("<|action_start|><|plugin|>\n", "internlm", "internlm"),
    ("<｜tool_calls_begin｜><think>", "step3", "step3"),
    ("<tool_calls></tool_calls><|extra_0|></think>", "hunyuan_a13b", "hunyuan_a13b"),
    ("{{ '<think>\n' }}{{ content.split('</think>') }}", None, "think"),
]


@pytest.mark.parametrize(("template", "tools", "reasoning"), TEMPLATES, ids=lambda t: str(t)[:24])
def test_a_template_tells_the_family(
    template: str, tools: str | None, reasoning: str | None
) -> None:
    found = family_for(template)

    assert tools == (found.tools and found.tools.name)
    assert reasoning == (found.reasoning and found.reasoning.name)


def test_without_a_template_nothing_is_told_apart() -> None:
    text = f"<think>a</think><tool_call>{call({})}</tool_call>"
    found = family_for(None)

    assert (None, None) == (found.tools, found.reasoning)
    parsed = found.parser(ParseContext(tools=TOOLS)).parse(text, final=True)
    assert [ContentDelta(text)] == parsed


def test_a_name_is_taken_whatever_the_template_says_and_none_turns_off() -> None:
    found = family_for(HERMES, tools="mistral", reasoning="deepseek_r1")
    assert found.tools is not None
    assert found.reasoning is not None
    assert ("mistral", "deepseek_r1") == (found.tools.name, found.reasoning.name)
    assert None is family_for(HERMES, tools="none").tools


@pytest.mark.parametrize("wrong", [{"tools": "think"}, {"reasoning": "hermes"}, {"tools": "x"}])
def test_a_name_that_is_none_of_that_kind_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="there is no parser") as caught:
        family_for(None, **wrong)
    assert "auto" in (caught.value.hint or "")


def test_two_that_claim_a_template_leave_it_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    known = dict(plugins().parsers())
    known["other"] = replace(known["hermes"], name="other")

    class Found:
        @staticmethod
        def parsers() -> Any:
            return known

    monkeypatch.setattr(family_module, "plugins", Found)
    assert None is family_for(HERMES).tools
    assert "could be of several parsers" in caplog.text


def test_parsers_of_two_families_work_one_after_the_other() -> None:
    found = family_for(None, tools="hermes", reasoning="think")
    text = f"<think>Hm.</think>\n\nYes.<tool_call>{call({'city': 'Ulm'})}</tool_call>"
    events = found.parser(ParseContext(tools=TOOLS)).parse(text, final=True)
    message = collect(events)

    assert ReasoningDelta("Hm.") == events[0]
    assert ("Hm.", "Yes.", 1) == (message.reasoning, message.content, len(message.tool_calls))
    one_by_one = found.parser(ParseContext(tools=TOOLS))
    pieces = [e for c in text for e in one_by_one.parse(c)] + one_by_one.parse("", final=True)
    again = collect(pieces)
    assert ("Hm.", "Yes.") == (again.reasoning, again.content)
    assert message.tool_calls[0].arguments == again.tool_calls[0].arguments
