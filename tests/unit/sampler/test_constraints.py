"""What may come: allowed ids, bad words, bias, minimum length."""

from __future__ import annotations

from typing import Any

import pytest
import torch

transformers = pytest.importorskip("transformers")

VOCAB = 50
NEVER = float("-inf")


@pytest.fixture
def edited(bench: Any) -> Any:
    """Logits as the choice sees them."""

    def run(logits: torch.Tensor, slots: list[int], starts: list[Any]) -> torch.Tensor:
        seen: list[torch.Tensor] = []
        edit = bench.sampler._edit

        def spy(edited: torch.Tensor, *args: Any) -> None:
            edit(edited, *args)
            seen.append(edited.clone())

        bench.sampler._edit = spy
        bench.sample(logits, slots, starts)
        return seen[0]

    return run


def noise(rows: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, VOCAB, generator=torch.Generator().manual_seed(seed)) * 3


def test_only_allowed_ids_keep_their_logits(edited: Any, start: Any) -> None:
    logits = noise(3)
    starts = [
        start(0, [1, 2]),
        start(4, [1], allowed_token_ids=(7, 3, 3, 49)),
        start(2, [3], allowed_token_ids=(0,)),
    ]
    got = edited(logits, [0, 4, 2], starts)
    expected = torch.full_like(logits, NEVER)
    expected[0] = logits[0]
    expected[1, [7, 3, 49]] = logits[1, [7, 3, 49]]
    expected[2, 0] = logits[2, 0]
    torch.testing.assert_close(got, expected, rtol=0, atol=0)


def test_bias_is_added_to_the_rows_that_ask(edited: Any, start: Any) -> None:
    logits = noise(3)
    starts = [
        start(1, [1], logit_bias={5: 2.5, 6: -100.0}),
        start(0, [2]),
        start(3, [2], logit_bias={5: -1.25}),
    ]
    got = edited(logits, [1, 0, 3], starts)
    expected = logits.clone()
    expected[0, 5] += 2.5
    expected[0, 6] += -100.0
    expected[2, 5] += -1.25
    torch.testing.assert_close(got, expected, rtol=0, atol=0)


BAD = ((9,), (4, 8), (1, 2, 3), (2, 3), (7, 7, 7, 7, 11), (5, 3))


ENDS = [[4], [1, 2], [30, 1, 2], [2], [7, 7, 7], [7, 7, 7, 7], [5, 1, 4], [1, 1, 2, 3], [5]]


@pytest.mark.parametrize("tokens", ENDS)
def test_bad_words_may_begin_with_the_first_token(
    edited: Any, start: Any, tokens: list[int]
) -> None:
    logits = noise(2, seed=len(tokens))
    got = edited(logits, [6, 1], [start(6, tokens, bad_word_ids=BAD), start(1, tokens)])
    expected = logits.clone()
    for *before, last in BAD:
        if tokens[len(tokens) - len(before) :] == before and len(before) <= len(tokens):
            expected[0, last] = NEVER
    torch.testing.assert_close(got, expected, rtol=0, atol=0)


@pytest.mark.parametrize("tokens", ENDS)
def test_bad_words_are_transformers(edited: Any, start: Any, tokens: list[int]) -> None:
    # Some releases of transformers pass over words as long as the context: so it is longer.
    tokens = [40, 41, 42, 43, *tokens]
    logits = noise(1, seed=len(tokens))
    got = edited(logits, [6], [start(6, tokens, bad_word_ids=BAD)])
    processor = transformers.NoBadWordsLogitsProcessor([list(word) for word in BAD])
    expected = processor(torch.tensor([tokens]), logits.clone())
    torch.testing.assert_close(got, expected, rtol=0, atol=0)


def test_a_bad_word_is_seen_across_the_runners_own_tokens(bench: Any, start: Any) -> None:
    likes_7 = torch.zeros(1, VOCAB)
    likes_7[0, 7], likes_7[0, 8] = 2.0, 1.0
    bench.sample(likes_7, [0], [start(0, [1], bad_word_ids=((7, 7, 7),))])
    tokens = [int(bench.sample(likes_7, [0]).token_ids[0]) for _ in range(5)]
    assert [7, 8, 7, 7, 8] == tokens  # after one 7 from the first step


def test_stop_ids_are_held_back_until_the_minimum_is_reached(bench: Any, start: Any) -> None:
    likes_stops = torch.zeros(2, VOCAB)
    likes_stops[:, 3], likes_stops[:, 4], likes_stops[:, 5] = 3.0, 2.0, 1.0
    starts = [
        start(0, [1, 1], stops=(3, 4), min_tokens=3),
        start(1, [1], stops=(3,), min_tokens=1),
    ]
    chosen = [bench.sample(likes_stops, [0, 1], starts).token_ids.tolist()]
    chosen += [bench.sample(likes_stops, [0, 1]).token_ids.tolist() for _ in range(3)]
    assert [[5, 4], [5, 3], [5, 3], [3, 3]] == chosen


def test_minimum_length_is_transformers(edited: Any, start: Any) -> None:
    logits, tokens = noise(1), [1, 2, 3, 4]
    got = edited(logits, [0], [start(0, tokens, num_prompt=2, stops=(8, 9), min_tokens=3)])
    processor = transformers.MinNewTokensLengthLogitsProcessor(2, 3, [8, 9])
    expected = processor(torch.tensor([tokens]), logits.clone())
    torch.testing.assert_close(got, expected, rtol=0, atol=0)


def test_outputs_before_a_preemption_count_towards_the_minimum(bench: Any, start: Any) -> None:
    likes_stop = torch.zeros(1, VOCAB)
    likes_stop[0, 3] = 1.0
    resumed = start(0, [1, 5, 5, 5], num_prompt=1, stops=(3,), min_tokens=3)
    assert bench.sample(likes_stop, [0], [resumed]).token_ids.tolist() == [3]


def test_bias_comes_after_the_allowed_ids_and_before_penalties(edited: Any, start: Any) -> None:
    logits = torch.ones(1, VOCAB)
    row = start(
        0,
        [5, 6],
        allowed_token_ids=(5, 7),
        logit_bias={5: 3.0, 9: 50.0},
        repetition_penalty=2.0,
    )
    got = edited(logits, [0], [row])
    expected = torch.full((1, VOCAB), NEVER)
    expected[0, 5], expected[0, 7] = (1 + 3) / 2, 1
    torch.testing.assert_close(got, expected, rtol=0, atol=0)


def test_ids_outside_the_vocabulary_are_passed_over(bench: Any, start: Any) -> None:
    logits = noise(1)
    row = start(
        0,
        [1],
        allowed_token_ids=(2, VOCAB + 1),
        logit_bias={VOCAB: 1.0},
        bad_word_ids=((1, VOCAB), (VOCAB, 1)),
        stops=(10**6,),
        min_tokens=2,
    )
    assert bench.sample(logits, [0], [row]).token_ids.tolist() == [2]


def test_a_slots_next_sequence_is_free_of_them(bench: Any, start: Any) -> None:
    logits = noise(1)
    best = int(logits.argmax())
    bench.sample(logits, [0], [start(0, [1], bad_word_ids=((best,),), logit_bias={best: -9.0})])
    others = start(1, [1], logit_bias={2: 1.0})
    chosen = bench.sample(logits.expand(2, -1), [0, 1], [start(0, [1]), others]).token_ids
    assert int(chosen[0]) == best
