"""Both providers keep outputs to what was asked for, at random, and say no to what they cannot."""

from __future__ import annotations

import json
import random
import re
from typing import Any

import jsonschema
import numpy as np
import pytest

from allmetal.constraint import Constraint, StructuredOutput
from allmetal.errors import RequestError
from allmetal.platform.contract import Unsupported
from allmetal.plugins.manager import plugins
from allmetal.structured.compiler import GrammarCompiler
from allmetal.structured.contract import Matcher, Vocabulary

pytest.importorskip("xgrammar", reason="needs allmetal[structured]")
pytest.importorskip("llguidance", reason="needs allmetal[structured]")

STOP = 300
WORDS = ["true", "false", "null", '": ', '", "', "abc", "12", "\u00e9", '{"', '"}', "]}", "yes"]
TOKENS: list[bytes | None] = [bytes([i]) for i in range(256)]
TOKENS += [word.encode() for word in WORDS]
TOKENS += [None] * (310 - len(TOKENS))
VOCABULARY = Vocabulary(tokens=TOKENS, stop_token_ids=(STOP,), size=310)
PROVIDERS = ("xgrammar", "llguidance")


@pytest.fixture(scope="module")
def compiler() -> GrammarCompiler:
    return GrammarCompiler(lambda: VOCABULARY, plugins().structured_providers(), limit_s=30)


def allowed(matcher: Matcher) -> list[int]:
    mask = np.zeros(-(-VOCABULARY.size // 32), np.int32)
    matcher.fill(mask)
    bits = np.unpackbits(mask.view(np.uint8), bitorder="little")[: VOCABULARY.size]
    return [int(i) for i in np.flatnonzero(bits)]


def written(matcher: Matcher, seed: int) -> str | None:
    """A random output that ends; None if it got long."""
    rng, out = random.Random(seed), b""
    for _ in range(600):
        ids = allowed(matcher)
        assert ids, "a dead end"
        assert not {i for i in ids if TOKENS[i] is None} - {STOP}
        token = STOP if STOP in ids and rng.random() < 0.5 else rng.choice(ids)
        # Closing what is open makes most of them end.
        closing = [i for i in ids if TOKENS[i] in (b'"', b"}", b"]", b'"}')]
        if closing and rng.random() < 0.4:
            token = rng.choice(closing)
        assert matcher.accept(token)
        out += b"" if token == STOP else TOKENS[token] or b""
        if matcher.ended:
            return out.decode(errors="replace")  # as a detokenizer does
    return None


def samples(
    compiler: GrammarCompiler, asked: StructuredOutput, provider: str, count: int = 12
) -> list[str]:
    constraint = asked.constraint
    named = Constraint(constraint.kind, constraint.source, constraint.any_whitespace, provider)
    grammar = compiler.submit(named).result()
    made = [written(grammar.matcher(), seed) for seed in range(count)]
    found = [text for text in made if text is not None]
    assert len(found) >= 2
    return found


SCHEMAS: list[dict[str, Any]] = [
    {"type": "object"},
    {"type": "string", "minLength": 2, "maxLength": 5},
    {"type": "string", "pattern": "^[a-c]+-\\d{2}$"},
    {"type": "integer", "minimum": -5, "maximum": 120},
    {"type": "number", "exclusiveMinimum": 0, "maximum": 2.5},
    {"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 3},
    {"enum": ["red", 3, None, {"a": 1}]},
    {"const": "only this"},
    {"type": ["string", "null"]},
    {
        "type": "object",
        "properties": {
            "name": {"type": "string"},
            "age": {"type": "integer"},
            "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 2},
        },
        "required": ["name", "age"],
        "additionalProperties": False,
    },
    {
        "$defs": {"node": {"type": "object", "properties": {"v": {"type": "integer"}}}},
        "type": "array",
        "items": {"$ref": "#/$defs/node"},
        "maxItems": 2,
        "minItems": 1,
    },
    {"anyOf": [{"type": "integer"}, {"type": "string", "maxLength": 3}]},
]


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("schema", SCHEMAS, ids=lambda s: json.dumps(s)[:40])
def test_json_is_valid_by_its_schema(
    compiler: GrammarCompiler, schema: dict[str, Any], provider: str
) -> None:
    for text in samples(compiler, StructuredOutput(json=schema), provider):
        jsonschema.validate(json.loads(text), schema)


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("pattern", ["[ab]{3}-\\d+", "(yes|no)!?", "[^x]{0,4}", "a*b"])
def test_a_pattern_is_matched(compiler: GrammarCompiler, pattern: str, provider: str) -> None:
    for text in samples(compiler, StructuredOutput(regex=pattern), provider):
        assert re.fullmatch(pattern, text)


@pytest.mark.parametrize("provider", PROVIDERS)
def test_one_of_the_choices_comes(compiler: GrammarCompiler, provider: str) -> None:
    choice = ["yes", "no", 'it "depends"\n', "\\", "é"]

    assert set(samples(compiler, StructuredOutput(choice=choice), provider, 60)) <= set(choice)


@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_grammar_is_followed(compiler: GrammarCompiler, provider: str) -> None:
    grammar = 'root ::= "(" root ")" | "x"'
    for text in samples(compiler, StructuredOutput(grammar=grammar), provider):
        depth = text.count("(")
        assert "(" * depth + "x" + ")" * depth == text


def test_tags_hold_a_part_of_a_free_text(compiler: GrammarCompiler) -> None:
    tag = {
        "type": "structural_tag",
        "format": {
            "type": "tag",
            "begin": "<n>",
            "content": {"type": "json_schema", "json_schema": {"type": "integer"}},
            "end": "</n>",
        },
    }
    for text in samples(compiler, StructuredOutput(structural_tag=tag), "xgrammar"):
        assert re.fullmatch(r"<n>-?\d+</n>", text)


IGNORED = [
    ({"type": "array", "items": {"type": "integer"}, "uniqueItems": True}, "[1, 1]"),
    ({"type": "integer", "not": {"const": 7}}, "7"),
    ({"type": "string", "enum": ["a", 1]}, "1"),
    ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "1"),
    ({"type": "object", "properties": {}, "required": ["z"]}, "{}"),
    ({"minLength": 3}, '"a"'),
    ({"type": "string", "pattern": "^a+$", "maxLength": 2}, '"aaa"'),
    ({"$defs": {"x": {"type": "integer"}}, "$ref": "#/$defs/x", "minimum": 3}, "2"),
    (
        {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
            "dependentRequired": {"a": ["b"]},
        },
        '{"a": 1}',
    ),
    (
        {
            "allOf": [
                {"properties": {"a": {"type": "integer"}}, "type": "object", "required": ["a"]},
                {"properties": {"b": {"type": "integer"}}, "type": "object", "required": ["b"]},
            ]
        },
        '{"a": 1}',
    ),
]


@pytest.mark.parametrize(("schema", "wrong"), IGNORED, ids=lambda s: str(s)[:40])
def test_what_would_be_passed_over_is_held_by_another_or_refused(
    compiler: GrammarCompiler, schema: dict[str, Any], wrong: str
) -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(json.loads(wrong), schema)
    try:
        grammar = compiler.submit(StructuredOutput(json=schema).constraint).result()
    except RequestError:
        return
    matcher = grammar.matcher()
    taken = all(matcher.accept(byte) for byte in wrong.encode())
    assert not (taken and (matcher.ended or STOP in allowed(matcher)))


def test_a_union_told_apart_by_a_constant_is_taken(compiler: GrammarCompiler) -> None:
    def of(kind: str) -> dict[str, Any]:
        properties = {"kind": {"const": kind}, "n": {"type": "integer"}}
        return {"type": "object", "properties": properties, "required": ["kind"]}

    schema = {
        "$defs": {"A": of("a"), "B": of("b")},
        "oneOf": [{"$ref": "#/$defs/A"}, {"$ref": "#/$defs/B"}],
    }
    for text in samples(compiler, StructuredOutput(json=schema), "xgrammar"):
        jsonschema.validate(json.loads(text), schema)


@pytest.mark.parametrize(
    ("asked", "complaint"),
    [
        (StructuredOutput(json={"type": "strange"}), "json cannot be had"),
        (StructuredOutput(json={"type": "object", "properties": 3}), "json cannot be had"),
        (StructuredOutput(regex="(a"), "regex is not valid"),
        (StructuredOutput(grammar="root ::= nothing"), "grammar is not valid"),
        (StructuredOutput(structural_tag={"a": 1}), "structural_tag is not valid"),
        (StructuredOutput(regex="a", provider="outlines"), "no provider 'outlines'"),
    ],
)
def test_what_is_wrong_is_said_with_a_hint(
    compiler: GrammarCompiler, asked: StructuredOutput, complaint: str
) -> None:
    with pytest.raises(RequestError, match=complaint) as caught:
        compiler.submit(asked.constraint).result()

    assert caught.value.hint
    assert "/project/cpp" not in caught.value.message


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"json": {}, "regex": "a"},
        {"choice": []},
        {"choice": ["a", ""]},
        {"choice": "ab"},
        {"json": "{"},
        {"json": "[1]"},
        {"regex": ""},
        {"regex": 3},
        {"regex": "a" * (1 << 19)},
    ],
)
def test_what_is_no_constraint_at_all_is_refused_before_anything(wrong: dict[str, Any]) -> None:
    with pytest.raises(RequestError, match="structured output"):
        StructuredOutput(**wrong)


def test_what_takes_too_long_is_refused_and_others_are_not_held_up() -> None:
    compiler = GrammarCompiler(
        lambda: VOCABULARY, {"slow": "allmetal_slow_stand_in:x"}, limit_s=0.2
    )
    import sys
    import threading
    import types

    release = threading.Event()

    class Slow:
        def compile(self, constraint: Constraint) -> Unsupported:
            release.wait(10)
            return Unsupported("too late")

    module = types.ModuleType("allmetal_slow_stand_in")
    vars(module)["x"] = lambda vocabulary: Slow()
    sys.modules[module.__name__] = module
    try:
        asked = compiler.submit(StructuredOutput(regex="a").constraint)
        assert not asked.done
        with pytest.raises(RequestError, match=r"within 0\.2 s") as caught:
            asked.result()
        assert asked.done
        assert caught.value.hint
        for n in range(63):
            compiler.submit(StructuredOutput(regex=f"a{n}").constraint)
        with pytest.raises(RequestError, match="are being compiled"):
            compiler.submit(StructuredOutput(regex="one more").constraint)
    finally:
        release.set()
        compiler.close()
        del sys.modules[module.__name__]


def test_equal_constraints_are_compiled_once(compiler: GrammarCompiler) -> None:
    one = compiler.submit(StructuredOutput(json={"type": "null"}).constraint)
    other = compiler.submit(StructuredOutput(json='{"type":  "null"}').constraint)

    assert one.future is other.future


def test_a_provider_that_is_not_installed_is_named_with_the_extra() -> None:
    compiler = GrammarCompiler(lambda: VOCABULARY, {"gone": "no_such_library_here:x"})

    with pytest.raises(RequestError, match="No module named") as caught:
        compiler.submit(StructuredOutput(regex="a").constraint).result()
    assert "allmetal[structured]" in (caught.value.hint or "")
