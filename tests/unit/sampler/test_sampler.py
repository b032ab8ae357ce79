"""Which token a row gets: distributions, seeds, independence of rows."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from allmetal.executor.contract import NO_TOKEN

transformers = pytest.importorskip("transformers")

VOCAB = 12
DRAWS = 4000


def noise(rows: int, vocab: int = VOCAB, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed)) * 2


def draws(bench: Any, start: Any, logits: torch.Tensor, **params: Any) -> torch.Tensor:
    """Tokens of many seeds for one row of logits."""
    tokens = []
    for first in range(0, DRAWS, 8):
        slots = list(range(8))
        starts = [start(slot, [1], seed=first + slot, **params) for slot in slots]
        tokens += bench.sample(logits.expand(8, -1), slots, starts).token_ids.tolist()
    return torch.tensor(tokens)


def assert_drawn_from(tokens: torch.Tensor, probabilities: torch.Tensor) -> None:
    """Chi-square within five standard deviations; nothing of probability 0 is drawn."""
    counts = torch.bincount(tokens, minlength=probabilities.numel()).double()
    expected = probabilities.double() * tokens.numel()
    assert float(counts[expected == 0].sum()) == 0
    likely = expected >= 5
    statistic = float(((counts - expected)[likely] ** 2 / expected[likely]).sum())
    freedom = max(int(likely.sum()) - 1, 1)
    assert abs(statistic - freedom) < 5 * math.sqrt(2 * freedom)


WARPERS = {
    "plain": ({}, []),
    "cold": ({"temperature": 0.6}, [lambda: transformers.TemperatureLogitsWarper(0.6)]),
    "top_k": ({"top_k": 4}, [lambda: transformers.TopKLogitsWarper(4)]),
    "top_p": ({"top_p": 0.7}, [lambda: transformers.TopPLogitsWarper(0.7)]),
    "min_p": ({"min_p": 0.2}, [lambda: transformers.MinPLogitsWarper(0.2)]),
    "all": (
        {"temperature": 1.5, "min_p": 0.05, "top_k": 6, "top_p": 0.8},
        [
            lambda: transformers.TemperatureLogitsWarper(1.5),
            lambda: transformers.MinPLogitsWarper(0.05),
            lambda: transformers.TopKLogitsWarper(6),
            lambda: transformers.TopPLogitsWarper(0.8),
        ],
    ),
}


@pytest.mark.parametrize("case", WARPERS)
def test_tokens_are_drawn_from_transformers_distribution(
    bench_of: Any, start: Any, case: str
) -> None:
    params, warpers = WARPERS[case]
    logits = noise(1)
    scores = logits.clone()
    for make in warpers:
        scores = make()(torch.tensor([[1]]), scores)
    tokens = draws(bench_of(VOCAB), start, logits, **{"temperature": 1.0, **params})
    assert_drawn_from(tokens, scores.softmax(-1)[0])


def test_positions_of_one_sequence_are_drawn_from_the_distribution(
    bench_of: Any, start: Any
) -> None:
    bench, logits = bench_of(VOCAB), noise(1)
    tokens = []
    for seed in range(40):
        tokens.append(bench.sample(logits, [0], [start(0, [1], seed=seed, temperature=1.0)]))
        tokens += [bench.sample(logits, [0]) for _ in range(99)]
    drawn = torch.cat([sampled.token_ids for sampled in tokens])
    assert_drawn_from(drawn, logits.softmax(-1)[0])


def test_a_seed_gives_the_same_tokens_in_any_company(bench_of: Any, start: Any) -> None:
    mine = noise(1, vocab=300, seed=5)
    params = {"temperature": 0.9, "top_p": 0.95, "seed": 77}

    def run(slot: int, others: list[int], **theirs: Any) -> list[int]:
        bench = bench_of(300)
        slots = [*others, slot]
        starts = [start(other, [3, 4], seed=other, **theirs) for other in others]
        starts.append(start(slot, [9, 8, 7], **params))
        tokens = []
        for step in range(20):
            logits = torch.cat((noise(len(others), vocab=300, seed=step), mine + step % 3))
            sampled = bench.sample(logits, slots, starts if step == 0 else None)
            tokens.append(int(sampled.token_ids[-1]))
        return tokens

    alone = run(0, [])
    assert run(5, [1, 2, 3], temperature=1.3) == alone
    assert run(2, [0], temperature=0.0) == alone
    assert run(3, [4, 1], temperature=0.7, top_k=3, min_p=0.1, presence_penalty=1.0) == alone
    assert len(set(alone)) > 5


def test_a_resumed_sequence_goes_on_with_the_same_draws(bench_of: Any, start: Any) -> None:
    logits = noise(1, vocab=300)
    bench = bench_of(300)
    params = {"temperature": 1.0, "seed": 5}
    tokens = [int(bench.sample(logits, [0], [start(0, [1], **params)]).token_ids)]
    tokens += [int(bench.sample(logits, [0]).token_ids) for _ in range(9)]
    resumed = start(3, [1, *tokens[:4]], num_prompt=1, **params)
    again = [int(bench.sample(logits, [3], [resumed]).token_ids)]
    again += [int(bench.sample(logits, [3]).token_ids) for _ in range(5)]
    assert tokens[4:] == again


def test_different_seeds_give_different_tokens(bench_of: Any, start: Any) -> None:
    logits = torch.zeros(8, 10_000)
    starts = [start(slot, [1], seed=slot, temperature=1.0) for slot in range(8)]
    tokens = bench_of(10_000).sample(logits, list(range(8)), starts).token_ids.tolist()
    assert len(set(tokens)) >= 7


def test_greedy_and_random_rows_share_a_step(bench_of: Any, start: Any) -> None:
    logits = noise(2, vocab=1000)
    starts = [start(0, [1], temperature=5.0, seed=3), start(1, [1])]
    token_ids = bench_of(1000).sample(logits, [0, 1], starts).token_ids
    assert int(token_ids[1]) == int(logits[1].argmax())
    assert int(token_ids[0]) != int(logits[0].argmax())


def test_a_vanishing_temperature_is_greedy(bench_of: Any, start: Any) -> None:
    logits = noise(8, vocab=200)
    starts = [start(slot, [1], temperature=1e-6, seed=slot) for slot in range(8)]
    token_ids = bench_of(200).sample(logits, list(range(8)), starts).token_ids
    assert token_ids.tolist() == logits.argmax(-1).tolist()


def test_penalties_reach_the_choice_and_only_the_rows_that_ask(bench_of: Any, start: Any) -> None:
    bench = bench_of(VOCAB)
    logits = torch.zeros(3, VOCAB)
    logits[:, 4], logits[:, 5] = 1.0, 0.9
    starts = [
        start(0, [1]),
        start(1, [1], frequency_penalty=0.5),
        start(2, [4], repetition_penalty=1.2),
    ]
    steps = [bench.sample(logits, [0, 1, 2], starts).token_ids.tolist()]
    steps += [bench.sample(logits, [0, 1, 2]).token_ids.tolist() for _ in range(2)]
    # Row 1 alternates as occurrences add up; row 2 has lost 4 to its prompt, then 5 to its output.
    assert [[4, 4, 5], [4, 5, 4], [4, 4, 4]] == steps


def test_every_row_agrees_with_its_row_alone(bench_of: Any, start: Any) -> None:
    """All kinds of rows at once, against each by itself."""
    kinds: list[dict[str, Any]] = [
        {},
        {"temperature": 1.0, "top_k": 5},
        {"temperature": 0.8, "top_p": 0.5, "repetition_penalty": 1.4},
        {"presence_penalty": 1.5, "logit_bias": {3: 4.0}},
        {"temperature": 1.2, "min_p": 0.1, "bad_word_ids": ((2, 3), (5,))},
        {"allowed_token_ids": (1, 2, 30), "frequency_penalty": 2.0},
        {"min_tokens": 3, "stops": (7, 8)},
        {"temperature": 1.0, "logprobs": 2},
    ]
    vocab = 64
    table = torch.from_numpy(np.random.default_rng(3).normal(0, 2, (6, 8, vocab))).float()

    def make(slot: int) -> Any:
        return start(slot, [slot, 2, 9], seed=slot + 50, **kinds[slot])

    def run(slots: list[int]) -> list[list[int]]:
        bench = bench_of(vocab)
        starts = [make(slot) for slot in slots]
        return [
            bench.sample(
                table[step][slots], slots, starts if step == 0 else None
            ).token_ids.tolist()
            for step in range(6)
        ]

    together = run(list(range(8)))
    for slot in range(8):
        assert [[row[slot]] for row in together] == run([slot])


def test_a_row_without_numbers_gets_no_token_whatever_the_kernel_makes_of_it(
    bench: Any, start: Any
) -> None:
    op = bench.sampler._op

    def wild(logits: torch.Tensor, *others: Any) -> torch.Tensor:
        found: torch.Tensor = op(logits, *others)
        return torch.where(
            logits.isnan().any(-1), torch.tensor([0, VOCAB + 900, -(1 << 40)]), found
        )

    bench.sampler._op = wild
    logits = noise(3, bench.vocab_size)
    expected = int(logits[0].argmax())
    logits[1:] = math.nan
    slots = [0, 1, 2]
    found = bench.sample(logits, slots, [start(slot, [1]) for slot in slots])
    assert [expected, NO_TOKEN, NO_TOKEN] == found.token_ids.tolist()
