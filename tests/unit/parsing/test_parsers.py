"""Every family's parser: what it makes of its own format, however that is cut, and of nonsense."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from allmetal.parsing import (
    ContentDelta,
    Event,
    Family,
    Message,
    ParseContext,
    ParserSpec,
    ReasoningDelta,
    ToolCallArguments,
    collect,
)
from allmetal.plugins.manager import plugins

from .examples import EXAMPLES, TOOLS, Example, call, j

SPECS = plugins().parsers()
NAMES = sorted(SPECS)


def family(spec: ParserSpec) -> Family:
    return Family(reasoning=spec if spec.reasoning else None, tools=spec if spec.tools else None)


def parse(example: Example, pieces: Sequence[str]) -> list[Event]:
    numbers = itertools.count()
    context = ParseContext(
        tools=TOOLS, prompt_end=example.prompt_end, new_id=lambda: f"call_{next(numbers):09}"
    )
    parser = family(SPECS[example.parser]).parser(context)
    events: list[Event] = []
    for piece in pieces:
        events += parser.parse(piece)
    return joined([*events, *parser.parse("", final=True)])


def joined(events: Iterable[Event]) -> list[Event]:
    """Adjacent deltas of a kind as one; empty ones are not allowed."""
    result: list[Event] = []
    for event in events:
        last = result[-1] if result else None
        match event, last:
            case (ContentDelta(text), ContentDelta(before)):
                result[-1] = ContentDelta(before + text)
            case (ReasoningDelta(text), ReasoningDelta(before)):
                result[-1] = ReasoningDelta(before + text)
            case (ToolCallArguments(index, text), ToolCallArguments(other, before)) if (
                index == other
            ):
                result[-1] = ToolCallArguments(index, before + text)
            case _:
                result.append(event)
        match event:
            case ContentDelta(text) | ReasoningDelta(text) | ToolCallArguments(_, text):
                assert text
    return result


def whole(example: Example, text: str | None = None) -> list[Event]:
    """Parsed in one call, as who does not stream does."""
    numbers = itertools.count()
    context = ParseContext(
        tools=TOOLS, prompt_end=example.prompt_end, new_id=lambda: f"call_{next(numbers):09}"
    )
    parser = family(SPECS[example.parser]).parser(context)
    return joined(parser.parse(example.text if text is None else text, final=True))


def named(example: Example) -> str:
    return f"{example.parser}-{example.text[:24]}"


@pytest.mark.parametrize("example", EXAMPLES, ids=named)
def test_a_family_reads_its_own_format(example: Example) -> None:
    message = collect(whole(example))

    assert (example.reasoning, example.content) == (message.reasoning, message.content)
    assert example.calls == [(c.name, json.loads(c.arguments)) for c in message.tool_calls]
    assert all(c.complete for c in message.tool_calls)
    assert len({c.id for c in message.tool_calls}) == len(message.tool_calls)


@pytest.mark.parametrize("example", EXAMPLES, ids=named)
def test_no_cut_into_two_changes_anything(example: Example) -> None:
    expected, text = whole(example), example.text

    for cut in range(len(text) + 1):
        assert expected == parse(example, [text[:cut], text[cut:]]), (text[:cut], text[cut:])


@pytest.mark.parametrize("example", EXAMPLES, ids=named)
def test_no_cut_into_three_and_no_single_characters_change_anything(example: Example) -> None:
    expected, text = whole(example), example.text

    assert expected == parse(example, list(text))
    # All pairs of cuts are thousands a text: those no further apart than the longest mark.
    for first in range(0, len(text), 4):
        for second in range(first + 1, min(first + 30, len(text)), 7):
            pieces = [text[:first], text[first:second], text[second:]]
            assert expected == parse(example, pieces), pieces


@pytest.mark.parametrize("example", EXAMPLES, ids=named)
def test_an_output_that_is_cut_off_says_a_beginning_of_the_same(example: Example) -> None:
    full = collect(whole(example))

    for end in range(0, len(example.text), 7):
        text = example.text[:end]
        events = whole(example, text)
        assert events == parse(example, list(text))
        message = collect(events)
        for partial, call_ in zip(message.tool_calls, full.tool_calls, strict=False):
            assert partial.name == call_.name
            if partial.complete:
                assert json.loads(partial.arguments) == json.loads(call_.arguments)
        assert len(message.tool_calls) <= len(full.tool_calls)


PARTS = sorted(
    {token for spec in SPECS.values() for token in spec.special_tokens}
    | {"<think>", "</think>", "<tool_call>", "</tool_call>", "<function=", "<parameter=", ">", "{"}
    | {"}", "[", "]", '"', ":", ",", "get_weather", "city", "\n", " ", "\\", "name", "(", ")", "="}
    | {"arguments", "parameters", "<tool_calls>", "functools", "call:", "<invoke name=", "true"}
    | {'"name": "get_weather", "arguments": ', "[TOOL_CALLS]", "<answer>", "ä", "1.5", "-", "'"}
    | {call({}), j({"city": "Ulm"}), "get_time()", "to=functions.get_time", "<|channel|>analysis"}
)


@settings(max_examples=12, deadline=None)
@given(
    text=st.lists(st.sampled_from(PARTS) | st.text(max_size=4), max_size=24).map("".join),
    cuts=st.lists(st.integers(0, 200), max_size=6),
    prompt_end=st.sampled_from(["", "<think>\n", "</think>"]),
)
@pytest.mark.parametrize("name", NAMES)
def test_nonsense_never_raises_and_no_cut_changes_it(
    name: str, text: str, cuts: list[int], prompt_end: str
) -> None:
    example = Example(parser=name, text=text, prompt_end=prompt_end)
    expected = whole(example)
    places = [0, *sorted({min(cut, len(text)) for cut in cuts}), len(text)]
    pieces = [text[a:b] for a, b in itertools.pairwise(places)]

    assert expected == parse(example, pieces)
    assert expected == parse(example, list(text))
    for call_ in collect(expected).tool_calls:
        assert call_.name
        if call_.complete:
            assert isinstance(json.loads(call_.arguments), dict)


@settings(max_examples=6, deadline=None)
@given(data=st.data())
@pytest.mark.parametrize("example", EXAMPLES, ids=named)
def test_a_damaged_example_never_raises_and_no_cut_changes_it(
    example: Example, data: st.DataObject
) -> None:
    text = example.text
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, min(len(text), start + 12)))
    text = text[:start] + data.draw(st.sampled_from(["", *PARTS])) + text[end:]
    cut = data.draw(st.integers(0, len(text)))

    expected = whole(example, text)
    assert expected == parse(example, [text[:cut], text[cut:]])
    assert expected == parse(example, list(text))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "text", ["", " ", "It rains.\n\nOr not? \n", "a < b, {c}: [d] `e` (f)", '{"answer": [1, 2]}']
)
def test_plain_text_is_content_to_the_letter(name: str, text: str) -> None:
    prompt_end = "</think>" if name == "deepseek_r1" else ""
    example = Example(parser=name, text=text, prompt_end=prompt_end)

    assert Message(content=text) == collect(whole(example))


@pytest.mark.parametrize("example", EXAMPLES, ids=named)
def test_without_tools_nothing_is_a_call(example: Example) -> None:
    parser = family(SPECS[example.parser]).parser(ParseContext(prompt_end=example.prompt_end))

    assert [] == collect(parser.parse(example.text, final=True)).tool_calls


def test_what_follows_a_broken_call_is_content_and_later_calls_are_found() -> None:
    text = f"<tool_call>\n{{'no': 'json'}}\n</tool_call> then <tool_call>{call({})}</tool_call>"
    message = collect(whole(Example(parser="hermes", text=text)))

    assert "<tool_call>\n{'no': 'json'}\n</tool_call> then" == message.content
    assert ["get_weather"] == [c.name for c in message.tool_calls]


@pytest.mark.parametrize("length", [200, *range(240, 275), 300])
def test_a_name_may_be_so_long_however_it_is_cut(length: int) -> None:
    name = "n" * length
    for text in (
        f"<tool_call><function={name}></function></tool_call> and so on",
        f"<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>{{}}<｜tool▁call▁end｜> and so on",
    ):
        example = Example(parser="qwen3_coder" if "function" in text else "deepseek_v31", text=text)
        assert whole(example) == parse(example, list(text))
        assert bool(collect(whole(example)).tool_calls) == (length <= 256)


def test_arguments_go_on_as_they_come() -> None:
    example = Example(parser="hermes", text="")
    parser = family(SPECS["hermes"]).parser(ParseContext(tools=TOOLS))
    parser.parse('<tool_call>\n{"name": "get_weather", "arguments": {"city": "San')
    [event] = parser.parse(" Fran")

    assert example.parser == "hermes"
    assert ToolCallArguments(0, " Fran") == event


def test_arguments_before_the_name_and_arguments_as_a_text_are_read() -> None:
    text = '<tool_call>{"arguments": "{\\"city\\": \\"Ulm\\"}", "name": "get_weather"}</tool_call>'
    [made] = collect(whole(Example(parser="hermes", text=text))).tool_calls

    assert {"city": "Ulm"} == json.loads(made.arguments)


def test_what_models_get_wrong_in_json_is_mended() -> None:
    text = '<tool_call>{"name": "get_weather", "arguments": {"city": "a\nb\\$", "exact": True}}'
    [made] = collect(whole(Example(parser="hermes", text=text))).tool_calls

    assert {"city": "a\nb\\$", "exact": True} == json.loads(made.arguments)


@pytest.mark.parametrize(
    ("key", "text", "expected"),
    [
        ("city", "12", "12"),
        ("days", "12", 12),
        ("days", "12.0", 12),
        ("days", "many", "many"),
        ("exact", "True", True),
        ("exact", "false", False),
        ("units", "null", None),
        ("units", "5", "5"),
        ("where", '{"a": [1]}', {"a": [1]}),
        ("where", "{'a': None}", {"a": None}),
        ("unknown", "02139", "02139"),
        ("unknown", "7", 7),
    ],
)
def test_marked_parameters_become_what_the_schema_says(
    key: str, text: str, expected: object
) -> None:
    xml = f"<tool_call><function=get_weather><parameter={key}>\n{text}\n</parameter></function>"
    [made] = collect(whole(Example(parser="qwen3_coder", text=xml))).tool_calls

    assert {key: expected} == json.loads(made.arguments)


def test_kimis_and_mistrals_own_ids_are_kept() -> None:
    kimi = next(e for e in EXAMPLES if e.parser == "kimi_k2")
    mistral = next(e for e in EXAMPLES if e.parser == "mistral" and "CALL_ID" in e.text)

    assert ["functions.get_weather:0", "functions.get_weather:1"] == [
        c.id for c in collect(whole(kimi)).tool_calls
    ]
    ids = [c.id for c in collect(whole(mistral)).tool_calls]
    assert "abcdefghi" == ids[1]
    assert all(len(each) == 9 and each.isalnum() for each in ids)


def test_every_family_has_an_example() -> None:
    same = {"openai"}  # gpt_oss by its other name
    assert set(NAMES) - same == {example.parser for example in EXAMPLES}
