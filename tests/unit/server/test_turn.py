"""Where thoughts begin and end, as a turn works it out of a family and its prompt."""

from __future__ import annotations

from typing import Any

import pytest
from small_tokenizers import as_tokenizer, byte_level

from allmetal.errors import RequestError
from allmetal.parsing import Family, Markers
from allmetal.plugins.manager import plugins
from allmetal.server.tool_schema import schema_of_calls
from allmetal.server.turn import thinking_of
from allmetal.text.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    backend = byte_level()
    backend.add_special_tokens(["<think>", "</think>"])
    return as_tokenizer(backend)


def family(name: str) -> Family:
    return Family(reasoning=plugins().parsers()[name])


def test_nothing_is_worked_out_where_nothing_depends_on_it(tokenizer: Tokenizer) -> None:
    for budget, constrained in ((None, False), (0, False)):
        assert None is thinking_of(Family(), tokenizer, "", budget=budget, constrained=constrained)
    closed = "<think>\n\n</think>\n\n"
    assert None is thinking_of(family("qwen3"), tokenizer, closed, budget=5, constrained=True)


def test_a_prompt_may_have_begun_them(tokenizer: Tokenizer) -> None:
    made = thinking_of(family("qwen3"), tokenizer, "x<think>\n", budget=5, constrained=False)
    unbegun = thinking_of(family("qwen3"), tokenizer, "x", budget=None, constrained=True)

    assert made is not None
    assert unbegun is not None
    assert (True, False) == (made.open, unbegun.open)
    assert (1, 1, 5) == (len(made.start), len(made.end), made.budget)


def test_gpt_oss_thinks_until_its_final_channel(tokenizer: Tokenizer) -> None:
    made = thinking_of(
        family("gpt_oss"), tokenizer, "<|start|>assistant", budget=9, constrained=False
    )

    assert made is not None
    assert made.open
    assert made.forced[-len(made.end) :] == made.end


@pytest.mark.parametrize("name", [None, "granite"])
def test_a_budget_that_could_not_be_held_is_refused(tokenizer: Tokenizer, name: str | None) -> None:
    found = family(name) if name else Family()
    with pytest.raises(RequestError, match="could not be bounded") as caught:
        thinking_of(found, tokenizer, "", budget=5, constrained=False)

    assert caught.value.hint


def test_every_markers_forced_end_ends_in_the_end() -> None:
    found: list[Markers] = [s.markers for s in plugins().parsers().values() if s.markers]
    assert len(found) > 5
    for markers in found:
        forced = markers.forced_end or markers.end
        assert markers.end.strip() in forced


def test_references_within_a_tools_schema_keep_their_meaning() -> None:
    parameters: dict[str, Any] = {
        "$defs": {"n": {"type": "integer"}},
        "type": "object",
        "properties": {"a": {"$ref": "#/$defs/n"}},
    }
    tool = {"type": "function", "function": {"name": "f", "parameters": parameters}}
    schema = schema_of_calls([tool], parallel=False)

    place = schema["items"]["properties"]["parameters"]["$ref"]
    assert "#/$defs/tool0" == place
    moved = schema["$defs"]["tool0"]
    assert "#/$defs/tool0/$defs/n" == moved["properties"]["a"]["$ref"]
    assert 1 == schema["maxItems"]
