"""Every family computes what transformers computes, however a sequence is cut into steps."""

from __future__ import annotations

from itertools import pairwise

import torch
import transformers
from golden import Golden, distance, drive, expected_greedy, expected_logits, load, prompt

TOLERANCE = 1e-5
LENGTH = 45


def test_a_whole_prompt_gives_the_logits_of_transformers(model: Golden) -> None:
    ids = prompt(LENGTH)
    (logits,) = drive(load(model.folder)).feed(ids)
    assert logits.dtype == torch.float32
    assert distance(logits, expected_logits(model.expected, ids)) < TOLERANCE


def test_odd_chunks_and_single_tokens_give_the_same_logits(model: Golden) -> None:
    ids = prompt(LENGTH)
    driver = drive(load(model.folder))
    cuts = (0, 1, 8, 21, 40, 41, 42, 43, 44, LENGTH)
    logits = torch.cat([driver.feed(ids[a:b])[0] for a, b in pairwise(cuts)])
    assert distance(logits, expected_logits(model.expected, ids)) < TOLERANCE


def test_sequences_in_one_batch_do_not_see_each_other(model: Golden) -> None:
    a, b = prompt(LENGTH, seed=1), prompt(29, seed=2)
    driver = drive(load(model.folder), num_sequences=2)
    (a_start,) = driver.feed(a[:17], [])
    a_next, b_start = driver.feed(a[17:18], b[:25])  # one decodes while the other begins
    b_rest, a_rest = reversed(driver.feed(a[18:], b[25:]))
    found = torch.cat([a_start, a_next, a_rest])
    assert distance(found, expected_logits(model.expected, a)) < TOLERANCE
    found = torch.cat([b_start, b_rest])
    assert distance(found, expected_logits(model.expected, b)) < TOLERANCE


def test_greedy_decoding_gives_the_tokens_of_transformers(model: Golden) -> None:
    ours = load(model.folder)
    seen: set[int] = set()
    for seed in range(4):
        ids = prompt(13, seed)
        found = drive(ours).greedy(ids, steps=32)
        assert found == expected_greedy(model.expected, ids, steps=32)
        seen |= set(found)
    assert len(seen) > 8, f"the model repeats itself: {seen} say little"


def test_bfloat16_is_as_close_to_the_exact_result_as_transformers_is(model: Golden) -> None:
    """The measure is float32 over weights that bfloat16 holds.

    The better quarter of tokens is judged: rounding may send a token to another expert, rightly,
    and all later ones attend to it.
    """
    kind = type(model.expected)
    exact = kind.from_pretrained(model.folder, dtype=torch.bfloat16, attn_implementation="eager")
    assert isinstance(exact, transformers.PreTrainedModel)
    prompts = [prompt(LENGTH, seed) for seed in range(4, 8)]
    half = torch.cat([expected_logits(exact, ids) for ids in prompts])
    exact = exact.float()
    truth = torch.cat([expected_logits(exact, ids) for ids in prompts])
    ours = load(model.folder, dtype=torch.bfloat16)
    logits = torch.cat([drive(ours).feed(ids)[0] for ids in prompts])
    assert _quarter(logits, truth) < max(1.3 * _quarter(half, truth), 1e-2)


def _quarter(logits: torch.Tensor, truth: torch.Tensor) -> float:
    """The distance that a quarter of the tokens stay below."""
    each = torch.tensor([distance(a, b) for a, b in zip(logits, truth, strict=True)])
    return float(each.quantile(0.25))
