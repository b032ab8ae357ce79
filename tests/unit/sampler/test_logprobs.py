"""Log probabilities of sampled tokens: of the raw distribution, whatever was done to choose."""

from __future__ import annotations

from typing import Any

import torch

from allmetal.request import Logprobs
from allmetal.runner.sampler.logprobs import row_logprobs

VOCAB = 50


def noise(rows: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, VOCAB, generator=torch.Generator().manual_seed(seed)) * 3


def formula(logits: torch.Tensor, chosen: int, count: int) -> Logprobs:
    """In float64, from a full sort."""
    scores = logits.double().log_softmax(-1)
    order = scores.argsort(descending=True, stable=True).tolist()
    top = order[:count]
    return Logprobs(
        token_ids=[chosen, *top],
        logprobs=[float(scores[i]) for i in (chosen, *top)],
        ranks=[order.index(chosen) + 1, *range(1, count + 1)],
    )


def assert_equal(expected: Logprobs, got: Logprobs) -> None:
    assert expected.token_ids == got.token_ids
    assert expected.ranks == got.ranks
    torch.testing.assert_close(
        torch.tensor(got.logprobs), torch.tensor(expected.logprobs), rtol=1e-5, atol=1e-5
    )


def test_rows_with_different_counts_come_back_as_the_formula_says() -> None:
    logits, chosen = noise(4), [3, 0, 49, 7]
    counts = [0, 5, 2, VOCAB]
    rows = row_logprobs(logits, torch.tensor(chosen), counts)
    words = rows.pack().tolist()
    assert len(words) == rows.num_words
    for row, got in enumerate(rows.unpack(words)):
        assert_equal(formula(logits[row], chosen[row], counts[row]), got)


def test_more_entries_than_the_vocabulary_has_are_all_of_it() -> None:
    rows = row_logprobs(noise(1), torch.tensor([2]), [VOCAB + 10])
    (got,) = rows.unpack(rows.pack().tolist())
    assert_equal(formula(noise(1)[0], 2, VOCAB), got)


def test_the_most_likely_token_has_rank_one_also_among_equals() -> None:
    rows = row_logprobs(torch.zeros(1, VOCAB), torch.tensor([31]), [0])
    assert rows.unpack(rows.pack().tolist())[0].ranks == [1]


def test_a_forbidden_token_may_be_reported() -> None:
    logits = noise(1)
    logits[0, 7] = float("-inf")
    rows = row_logprobs(logits, torch.tensor([7]), [1])
    assert rows.unpack(rows.pack().tolist())[0].logprobs[0] == float("-inf")


def test_sampled_rows_report_the_raw_distribution(bench: Any, start: Any) -> None:
    logits = noise(4)
    starts = [
        start(0, [1], temperature=2.0, top_k=3, seed=1, logprobs=4),
        start(1, [1]),
        start(2, [1, 2], allowed_token_ids=(5, 6), repetition_penalty=1.5, logprobs=0),
        start(3, [1], logprobs=2),
    ]
    sampled = bench.sample(logits, [0, 1, 2, 3], starts)
    assert sampled.logprob_rows == [0, 2, 3]
    got = sampled.logprobs.unpack(sampled.logprobs.pack().tolist())
    for row, count, entry in zip((0, 2, 3), (4, 0, 2), got, strict=True):
        assert_equal(formula(logits[row], int(sampled.token_ids[row]), count), entry)


def test_all_rows_with_logprobs_and_edits_report_the_raw_distribution(
    bench: Any, start: Any
) -> None:
    logits = noise(2)
    starts = [start(slot, [1, 2], logit_bias={4: 50.0}, logprobs=1) for slot in (0, 1)]
    sampled = bench.sample(logits, [0, 1], starts)
    assert sampled.token_ids.tolist() == [4, 4]
    for row, entry in enumerate(sampled.logprobs.unpack(sampled.logprobs.pack().tolist())):
        assert_equal(formula(logits[row], 4, 1), entry)


def test_no_row_asking_costs_and_reports_nothing(bench: Any, start: Any) -> None:
    assert bench.sample(noise(1), [0], [start(0, [1])]).logprobs is None
