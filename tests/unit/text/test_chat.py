"""Chat templates give what transformers gives, and say no in the template's own words."""

from __future__ import annotations

import re
from typing import Any

import pytest
from small_tokenizers import byte_level
from transformers import PreTrainedTokenizerFast

from allmetal.errors import RequestError
from allmetal.text.tokenizer import Tokenizer, TokenizerParts

CHATML = (
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content']"
    " + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

ALTERNATING = """{{- bos_token }}
{%- if messages[0]['role'] == 'system' %}
    {%- set first = messages[0]['content'] | trim + '\n\n' %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set first = '' %}
    {%- set loop_messages = messages %}
{%- endif %}
{%- for message in loop_messages %}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception("roles must alternate user/assistant") }}
    {%- endif %}
    {%- set role = 'model' if message['role'] == 'assistant' else message['role'] %}
    {{- '<start_of_turn>' + role + '\n' + (first if loop.first else '') }}
    {{- message['content'] | trim + '<end_of_turn>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<start_of_turn>model\n' }}
{%- endif %}
"""

TOOLS = """{%- if tools %}
<|im_start|>system
# Tools
    {%- for tool in tools %}
    {{ tool | tojson }}
    {% endfor %}
{{ tools | tojson(indent=2) }}<|im_end|>
{%- endif %}
{% for message in messages %}
<|im_start|>{{ message.role }}
    {%- if message.tool_calls %}
        {%- for call in message.tool_calls %}
<tool_call>{"name": {{ call.function.name | tojson }},
"arguments": {{ call.function.arguments | tojson(sort_keys=true) }}}</tool_call>
        {%- endfor %}
    {%- endif %}
{{ message.content or '' }}<|im_end|>
{% endfor %}
{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}
"""

THINKING = """{%- set ns = namespace(last=-1, count=0) %}
{%- for message in messages %}
    {%- if message.role == 'system' %}{% continue %}{% endif %}
    {%- if message.role == 'user' and message.content is string %}
        {%- set ns.last = loop.index0 %}
    {% endif %}
    {%- if loop.index0 > 40 %}{% break %}{% endif %}
{%- endfor %}
{%- for message in messages %}
<|{{ message.role }}|>
    {%- if message.role == 'assistant' %}
        {%- if '</think>' in message.content %}
            {%- set content = message.content.split('</think>')[-1].lstrip('\n') %}
        {%- else %}{%- set content = message.content %}{% endif %}
{% generation %}{{ content }}{{ eos_token }}{% endgeneration %}
    {%- else %}
{{ message.content }}
    {%- endif %}
{%- endfor %}
last={{ ns.last }}
{%- if add_generation_prompt %}<|assistant|>
    {%- if enable_thinking is defined and enable_thinking is false %}<think></think>{% endif %}
{%- endif %}
"""

DATED = """{% macro greet(name) %}Hello {{ name }}{% endmacro %}
Today is {{ strftime_now("%Y-%m") }}. {{ greet("<b>" ~ messages[0].content ~ "</b>") }}
{%- for key, value in (messages[0] | dictsort) %} {{ key }}={{ value | upper }}{% endfor %}
{%- if documents %}{{ documents | length }}{% endif %}
{{ pad_token is defined }} {{ messages | map(attribute='role') | join(',') }}
"""
TEMPLATES = {
    "chatml": CHATML,
    "alternating": ALTERNATING,
    "tools": TOOLS,
    "thinking": THINKING,
    "dated": DATED,
}
TALK = [
    {"role": "system", "content": "Be brief; <b>bold</b> & 'quoted'.\n"},
    {"role": "user", "content": "Hé 你好\n  two  spaces "},
    {"role": "assistant", "content": "<think>\nwell\n</think>\n\nSure."},
    {"role": "user", "content": "3 < 4?"},
]
TOOL = {
    "type": "function",
    "function": {
        "name": "wéather",
        "parameters": {"type": "object", "properties": {"b": 1, "a": []}},
    },
}
CALL = {
    "role": "assistant",
    "content": None,
    "tool_calls": [{"function": {"name": "f", "arguments": {"z": "<&>", "a": 1}}}],
}


def ours(**templates: str) -> Tokenizer:
    return Tokenizer(
        TokenizerParts(
            backend=byte_level(),
            special_tokens={"bos_token": "<s>", "eos_token": "</s>"},
            chat_templates=templates,
        )
    )


def theirs(template: str, messages: Any, **options: Any) -> str:
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=byte_level(), bos_token="<s>", eos_token="</s>", chat_template=template
    )
    text: str = tokenizer.apply_chat_template(messages, tokenize=False, **options)
    return text


@pytest.mark.parametrize("prompt", [True, False], ids=["prompt", "no prompt"])
@pytest.mark.parametrize("name", TEMPLATES)
def test_a_talk_is_rendered_as_transformers_renders_it(name: str, prompt: bool) -> None:
    template = TEMPLATES[name]

    expected = theirs(template, TALK, add_generation_prompt=prompt)

    assert expected == ours(default=template).apply_chat_template(
        TALK, add_generation_prompt=prompt
    )


def test_tools_and_calls_are_rendered_as_transformers_renders_them() -> None:
    messages = [*TALK, CALL, {"role": "tool", "content": "{}"}]

    expected = theirs(TOOLS, messages, tools=[TOOL], add_generation_prompt=True)

    assert "wéather" in expected
    assert "<&>" in expected
    assert expected == ours(default=TOOLS).apply_chat_template(messages, tools=[TOOL])


def test_further_arguments_reach_the_template() -> None:
    expected = theirs(THINKING, TALK, add_generation_prompt=True, enable_thinking=False)

    actual = ours(default=THINKING).apply_chat_template(TALK, enable_thinking=False)

    assert expected == actual
    assert "<think></think>" in actual


def test_a_template_for_tools_is_used_when_there_are_tools() -> None:
    tokenizer = ours(default=CHATML, tool_use=TOOLS)

    assert "# Tools" in tokenizer.apply_chat_template(TALK, tools=[TOOL])
    assert "# Tools" not in tokenizer.apply_chat_template(TALK)
    assert "# Tools" in tokenizer.apply_chat_template(TALK, tools=[TOOL], chat_template="tool_use")


def test_a_template_can_be_given_by_its_source() -> None:
    source = "{{ messages | length }}"
    assert ours().apply_chat_template(TALK, chat_template=source) == "4"


def test_parts_of_text_are_joined_for_templates_that_know_strings_only() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]

    text = ours(default=CHATML).apply_chat_template([{"role": "user", "content": parts}])

    assert "<|im_start|>user\na\nb<|im_end|>" in text


def error(*args: Any, template: str | None, **options: Any) -> RequestError:
    tokenizer = ours(**({} if template is None else {"default": template}))
    with pytest.raises(RequestError) as raised:
        tokenizer.apply_chat_template(*args, **options)
    return raised.value


def test_a_model_without_a_template_says_so() -> None:
    e = error(TALK, template=None)

    assert "no chat template" in e.message
    assert "--chat-template" in (e.hint or "")


def test_what_the_template_refuses_is_said_in_its_words() -> None:
    two = [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]

    e = error(two, template=ALTERNATING)

    assert "roles must alternate user/assistant" in e.message


def test_messages_without_content_are_the_requests_fault() -> None:
    nothing = [{"role": "user", "content": None}]

    assert "fails on these messages" in error(nothing, template=CHATML).message
    assert "refuses these messages" in error([{"role": "user"}], template=CHATML).message


def test_broken_jinja_is_named_with_its_line() -> None:
    e = error(TALK, template="ok\n{% if %}")

    assert re.search(r"not valid Jinja: line 2", e.message)


@pytest.mark.parametrize(
    "template",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ (messages[0]).update({'a': 1}) }}",
    ],
)
def test_a_template_cannot_leave_its_sandbox(template: str) -> None:
    assert "refuses" in error(TALK, template=template).message
