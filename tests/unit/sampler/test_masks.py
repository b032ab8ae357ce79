"""Masks that come with a step: a row gets an allowed token, others are left alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from allmetal.executor.contract import NO_TOKEN, TokenMasks

V = 50


def masks(allowed: dict[int, list[int]], vocab_size: int = V) -> TokenMasks:
    bits = np.zeros((len(allowed), 64 * -(-vocab_size // 64)), np.uint8)
    for row, tokens in enumerate(allowed.values()):
        bits[row, tokens] = 1
    packed = np.packbits(bits, axis=1, bitorder="little").tobytes()
    return TokenMasks(step_id=0, slots=list(allowed), bits=packed)


def choose(bench: Any, logits: torch.Tensor, rows: Any, given: TokenMasks | None) -> Any:
    return bench.sampler(logits.clone(), rows, given)


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"temperature": 1.0},
        {"temperature": 1.0, "top_k": 3, "top_p": 0.9},
        {"logit_bias": {7: 50.0}},
        {"presence_penalty": 1.0},
    ],
)
def test_a_row_gets_an_allowed_token_and_others_what_they_would(
    bench: Any, start: Any, params: dict[str, Any]
) -> None:
    logits = torch.randn(3, V, generator=torch.Generator().manual_seed(1))
    starts = [start(slot, [1, 2, 3], **params) for slot in (4, 0, 2)]
    rows = bench.step([4, 0, 2], starts).samples
    free = choose(bench, logits, rows, None).token_ids.tolist()
    given = masks({0: [11, 13], 2: [49]})

    chosen = choose(bench, logits, rows, given).token_ids.tolist()

    assert free[0] == chosen[0]
    assert chosen[1] in (11, 13)
    assert 49 == chosen[2]


@pytest.mark.parametrize("vocab_size", [1, 31, 32, 50, 63, 64, 65, 200])
def test_every_single_token_can_be_all_that_is_allowed(
    bench_of: Any, start: Any, vocab_size: int
) -> None:
    bench = bench_of(vocab_size=vocab_size)
    rows = bench.step([0, 1], [start(0, [0]), start(1, [0])]).samples
    logits = torch.randn(2, vocab_size)
    for token in range(vocab_size):
        given = masks({0: [token], 1: [vocab_size - 1 - token]}, vocab_size)
        chosen = choose(bench, logits, rows, given).token_ids.tolist()
        assert [token, vocab_size - 1 - token] == chosen


def test_logprobs_stay_those_of_the_model(bench: Any, start: Any) -> None:
    logits = torch.randn(2, V)
    rows = bench.step([0, 1], [start(s, [1], logprobs=3) for s in (0, 1)]).samples
    plain = choose(bench, logits, rows, None)
    masked = choose(bench, logits, rows, masks({0: [9], 1: [8]}))

    assert [9, 8] == masked.token_ids.tolist()
    assert torch.equal(plain.logprobs.token_ids[:, 1:], masked.logprobs.token_ids[:, 1:])
    expected = logits.log_softmax(-1)[[0, 1], [9, 8]]
    assert torch.allclose(expected, masked.logprobs.logprobs[:, 0])


def test_a_mask_that_leaves_nothing_gives_no_token(bench: Any, start: Any) -> None:
    rows = bench.step([0], [start(0, [1])]).samples

    given = masks({0: []})
    assert [NO_TOKEN] == choose(bench, torch.randn(1, V), rows, given).token_ids.tolist()
