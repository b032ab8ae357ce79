"""Calls that another library's grammars of the families' formats produce are read whole."""

from __future__ import annotations

import json
import random
from typing import Any

import jsonschema
import numpy as np
import pytest

from allmetal.parsing import Family, ParseContext, collect
from allmetal.plugins.manager import plugins

xgrammar = pytest.importorskip("xgrammar", reason="needs allmetal[structured]")

STOP = 256
PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
TOOLS = [{"type": "function", "function": {"name": "get_weather", "parameters": PARAMETERS}}]
PAIRS = [  # xgrammar's name, ours, and what ends a free text
    ("llama", "llama3_json", '"'),
    ("kimi", "kimi_k2", '"'),
    ("deepseek_r1", "deepseek_v3", '"'),
    ("deepseek_v3_1", "deepseek_v31", '"'),
    ("deepseek_v3_2", "deepseek_v32", "</｜DSML｜parameter>"),
    ("qwen_3", "qwen3", '"'),
    ("qwen_3_coder", "qwen3_coder", "</parameter>"),
    ("minimax", "minimax_m2", "</parameter>"),
    ("glm_4_7", "glm47", "</arg_value>"),
    ("gemma_4", "gemma4", '<|"|>'),
]


@pytest.fixture(scope="module")
def compiler() -> Any:
    tokens = [bytes([i]) for i in range(256)] + [b""]
    info = xgrammar.TokenizerInfo(
        tokens, vocab_type=xgrammar.VocabType.RAW, vocab_size=257, stop_token_ids=[STOP]
    )
    return xgrammar.GrammarCompiler(info, max_threads=1)


def random_text(compiled: Any, seed: int, end: str) -> str | None:
    """A text of the grammar that ends; a few letters stand in for what is free."""
    rng, out = random.Random(seed), b""
    matcher = xgrammar.GrammarMatcher(compiled)
    mask = np.zeros((1, 9), np.int32)
    for _ in range(600):
        mask.fill(-1)
        matcher.fill_next_token_bitmask(mask)
        bits = np.unpackbits(mask.view(np.uint8), bitorder="little")[:257]
        ids = [int(i) for i in np.flatnonzero(bits)]
        if STOP in ids and out:
            return out.decode()
        ids = [i for i in ids if i not in b" \n\t\r" and i != STOP] or ids
        # A random walk would not find the longer ends.
        if len(ids) > 20 and rng.random() < 0.3 and matcher.accept_string(end):
            out += end.encode()
            continue
        free = [i for i in ids if i in b"ab7"] if len(ids) > 20 else []
        closing = [i for i in ids if i in b"}]<>"] if len(ids) <= 20 and rng.random() < 0.7 else []
        token = rng.choice(closing or free or ids)
        assert matcher.accept_token(token)
        out += bytes([token])
    return None


@pytest.mark.parametrize(("style", "name", "end"), PAIRS)
def test_a_demanded_call_in_a_familys_own_form_is_read(
    compiler: Any, style: str, name: str, end: str
) -> None:
    tag = xgrammar.get_model_structural_tag(
        style, tools=TOOLS, tool_choice="required", reasoning="disabled"
    )
    compiled = compiler.compile_structural_tag(tag)
    spec = plugins().parsers()[name]
    family = Family(tools=spec, reasoning=spec if spec.reasoning else None)
    texts = [text for seed in range(12) if (text := random_text(compiled, seed, end))]
    assert len(texts) > 2
    for text in texts:
        context = ParseContext(tools=TOOLS, prompt_end="</think>\n\n")
        calls = collect(family.parser(context).parse(text, final=True)).tool_calls
        assert calls, text
        for call in calls:
            assert ("get_weather", True) == (call.name, call.complete), text
            jsonschema.validate(json.loads(call.arguments), PARAMETERS)
