"""Penalties against the formulas in numpy, and against transformers."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from allmetal.runner.sampler.penalties import penalise

transformers = pytest.importorskip("transformers")

VOCAB = 40
ROWS = [6, 0, 3, 2, 7]


def formula(
    logits: np.ndarray,
    tokens: list[int],
    num_prompt: int,
    repetition: float,
    presence: float,
    frequency: float,
) -> np.ndarray:
    """One row in float64, token by token."""
    out = logits.astype(np.float64)
    for token in set(tokens):
        out[token] = out[token] / repetition if out[token] > 0 else out[token] * repetition
    output = tokens[num_prompt:]
    for token in set(output):
        out[token] -= presence + frequency * output.count(token)
    return out


def random_case(seed: int) -> tuple[torch.Tensor, torch.Tensor, list[list[int]], list[int]]:
    """Logits, a history with junk behind each row's end, its tokens, and prompt lengths."""
    rng = np.random.default_rng(seed)
    lengths = [int(n) for n in rng.integers(1, 30, size=5)]
    tokens = [[int(t) for t in rng.integers(0, VOCAB, size=n)] for n in lengths]
    num_prompt = [int(rng.integers(1, n + 1)) for n in lengths]
    history = torch.full((5, 30), -(10**9), dtype=torch.int32)
    for row, ids in enumerate(tokens):
        history[row, : len(ids)] = torch.tensor(ids)
    logits = torch.from_numpy(rng.normal(0, 4, size=(5, VOCAB))).float()
    return logits, history, tokens, num_prompt


def apply(
    logits: torch.Tensor,
    history: torch.Tensor,
    tokens: list[list[int]],
    num_prompt: list[int],
    **penalties: list[float] | None,
) -> torch.Tensor:
    """The penalised rows; they lie among others, which must stay as they are."""
    given = {
        name: None if values is None else torch.tensor(values) for name, values in penalties.items()
    }
    wide = torch.randn(8, VOCAB, generator=torch.Generator().manual_seed(1))
    wide[ROWS] = logits
    before = wide.clone()
    penalise(
        wide,
        torch.tensor(ROWS),
        history,
        torch.tensor([len(ids) for ids in tokens]),
        torch.tensor(num_prompt),
        repetition=given.get("repetition"),
        presence=given.get("presence"),
        frequency=given.get("frequency"),
    )
    others = [row for row in range(8) if row not in ROWS]
    torch.testing.assert_close(wide[others], before[others], rtol=0, atol=0)
    return wide[ROWS]


@pytest.mark.parametrize("seed", range(6))
def test_all_three_together_are_the_formula(seed: int) -> None:
    logits, history, tokens, num_prompt = random_case(seed)
    rng = np.random.default_rng(seed + 100)
    repetition = rng.uniform(0.5, 2.0, 5).tolist()
    presence = rng.uniform(-2, 2, 5).tolist()
    frequency = rng.uniform(-2, 2, 5).tolist()
    got = apply(
        logits,
        history,
        tokens,
        num_prompt,
        repetition=repetition,
        presence=presence,
        frequency=frequency,
    )
    for row in range(5):
        expected = formula(
            logits[row].numpy(),
            tokens[row],
            num_prompt[row],
            repetition[row],
            presence[row],
            frequency[row],
        )
        np.testing.assert_allclose(got[row].numpy(), expected, rtol=1e-5, atol=1e-5)


def test_repetition_is_transformers_over_prompt_and_output() -> None:
    logits, history, tokens, num_prompt = random_case(7)
    got = apply(logits, history, tokens, num_prompt, repetition=[1.3] * 5)
    processor = transformers.RepetitionPenaltyLogitsProcessor(penalty=1.3)
    for row, ids in enumerate(tokens):
        expected = processor(torch.tensor([ids]), logits[row : row + 1].clone())
        torch.testing.assert_close(got[row : row + 1], expected, rtol=0, atol=0)


def test_presence_and_frequency_leave_the_prompt_alone() -> None:
    logits, history, tokens, _ = random_case(8)
    lengths = [len(ids) for ids in tokens]
    got = apply(logits, history, tokens, lengths, presence=[2.0] * 5, frequency=[2.0] * 5)
    torch.testing.assert_close(got, logits, rtol=0, atol=0)
