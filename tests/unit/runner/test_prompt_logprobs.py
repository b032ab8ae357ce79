"""Log probabilities of a prompt against transformers, in one piece and in chunks."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from allmetal.request import Logprobs, SamplingParams
from allmetal.runner import prompt_logprobs

PROMPT = [5, 17, 80, 3, 9, 9, 41, 22, 60, 1, 13]


def reference(llama: Any, tokens: list[int], count: int) -> list[Logprobs]:
    """One entry for each position from 1 on."""
    with torch.no_grad():
        scores = llama(torch.tensor([tokens])).logits[0].double().log_softmax(-1)
    entries = []
    for position in range(1, len(tokens)):
        row = scores[position - 1]
        order = row.argsort(descending=True, stable=True).tolist()
        ids = [tokens[position], *order[:count]]
        entries.append(
            Logprobs(
                token_ids=ids,
                logprobs=[float(row[i]) for i in ids],
                ranks=[order.index(ids[0]) + 1, *range(1, count + 1)],
            )
        )
    return entries


def assert_equal(expected: list[Logprobs], got: list[Logprobs]) -> None:
    assert len(expected) == len(got)
    for one, other in zip(expected, got, strict=True):
        assert one.token_ids == other.token_ids
        assert one.ranks == other.ranks
        torch.testing.assert_close(
            torch.tensor(other.logprobs), torch.tensor(one.logprobs), rtol=1e-4, atol=1e-4
        )


def asking(count: int) -> SamplingParams:
    return SamplingParams(temperature=0.0, prompt_logprobs=count)


@pytest.mark.parametrize("chunks", [[11], [4, 7], [1] * 11, [10, 1], [3, 3, 3, 2]])
def test_a_prompts_logprobs_do_not_depend_on_its_chunks(
    llama: Any, driver: Any, chunks: list[int]
) -> None:
    starts = [driver.start(2, PROMPT, asking(3))]
    got: list[Logprobs] = []
    for size in chunks:
        output = driver.run({2: size}, *starts)
        got += output.prompt_logprobs.get(2, [])
        starts = []
    assert_equal(reference(llama, PROMPT, 3), got)


def test_outputs_have_no_prompt_logprobs(driver: Any) -> None:
    driver.run({2: 11}, driver.start(2, PROMPT, asking(0)))
    assert driver.run({2: 1}).prompt_logprobs == {}


def test_outputs_of_a_sequence_that_starts_over_are_no_prompt(llama: Any, driver: Any) -> None:
    start = driver.start(1, PROMPT, asking(1), num_prompt_tokens=6)
    got = driver.run({1: 11}, start).prompt_logprobs[1]
    assert_equal(reference(llama, PROMPT[:6], 1), got)


def test_prompts_large_in_logits_are_done_in_parts(
    llama: Any, driver: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    monkeypatch.setattr(driver.runner._prompt_logprobs, "_rows", 4)
    logits = driver.runner._model.logits
    monkeypatch.setattr(
        driver.runner._model, "logits", lambda h: asked.append(h.shape[0]) or logits(h)
    )
    got = driver.run({0: 11}, driver.start(0, PROMPT, asking(2))).prompt_logprobs[0]
    assert_equal(reference(llama, PROMPT, 2), got)
    assert asked == [4, 4, 2, 1]
    assert prompt_logprobs.MAX_LOGITS >= 1 << 20


def test_several_sequences_and_sampled_logprobs_in_one_step(llama: Any, driver: Any) -> None:
    short = PROMPT[:5]
    plain = driver.start(0, PROMPT[3:8])
    both = SamplingParams(temperature=0.0, prompt_logprobs=2, logprobs=1)
    starts = [driver.start(4, PROMPT, both), plain, driver.start(1, short, asking(0))]
    output = driver.run({4: 11, 0: 5, 1: 5}, *starts)
    assert set(output.prompt_logprobs) == {4, 1}
    assert_equal(reference(llama, PROMPT, 2), output.prompt_logprobs[4])
    assert_equal(reference(llama, short, 0), output.prompt_logprobs[1])
    assert output.logprobs[1:] == [None, None]
    sampled = reference(llama, [*PROMPT, output.token_ids[0]], 1)[-1]
    assert_equal([sampled], [output.logprobs[0]])
