"""A runner's greedy tokens against transformers' on the same random weights."""

from __future__ import annotations

from typing import Any

import pytest

PROMPTS = [[5, 17, 80, 3, 9, 9, 41], [60], [2, 4, 8, 16, 32, 64, 31, 62, 27, 54, 11]]


def test_a_prompt_at_once_then_token_by_token(expected: Any, driver: Any) -> None:
    prompt = PROMPTS[0]
    driver.run({0: len(prompt)}, driver.start(0, prompt))
    for _ in range(9):
        driver.run({0: 1})
    assert driver.sequences[0].tokens == expected(prompt, 10)


@pytest.mark.parametrize("chunk", [1, 3, 4, 5])
def test_a_prompt_in_chunks_gives_the_same_tokens(expected: Any, driver: Any, chunk: int) -> None:
    prompt = PROMPTS[2]
    starts = [driver.start(3, prompt)]
    left = len(prompt)
    while left:
        output = driver.run({3: min(chunk, left)}, *starts)
        left -= min(chunk, left)
        assert len(output.token_ids) == (left == 0)
        starts = []
    for _ in range(5):
        driver.run({3: 1})
    assert driver.sequences[3].tokens == expected(prompt, 6)


def test_prompts_and_outputs_share_a_step(expected: Any, driver: Any) -> None:
    first, second, third = PROMPTS
    driver.run({4: len(first)}, driver.start(4, first))
    driver.run({4: 1, 1: 1}, driver.start(1, second))
    driver.run({4: 1, 2: 5, 1: 1}, driver.start(2, third))
    driver.run({2: 6, 1: 1, 4: 1})
    for _ in range(8):
        driver.run({4: 1, 1: 1, 2: 1})
    for slot, prompt in ((4, first), (1, second), (2, third)):
        tokens = driver.sequences[slot].tokens
        assert tokens == expected(prompt, len(tokens) - len(prompt))


def test_a_step_takes_its_token_from_the_one_before_without_the_host(
    expected: Any, driver: Any
) -> None:
    prompt = PROMPTS[0]
    plans = [driver.plan({0: len(prompt)}, driver.start(0, prompt))]
    plans += [driver.plan({0: 1}) for _ in range(4)]
    launched = [driver.runner.launch(plan) for plan in plans]
    tokens = [step.collect().token_ids[0] for step in launched]
    assert prompt + tokens == expected(prompt, 5)


def test_a_slot_keeps_nothing_of_its_last_sequence(expected: Any, driver: Any) -> None:
    long, short = PROMPTS[2], PROMPTS[1]
    driver.run({0: len(long)}, driver.start(0, long))
    driver.run({0: 1})
    driver.run({0: 1}, driver.start(0, short))
    for _ in range(6):
        driver.run({0: 1})
    assert driver.sequences[0].tokens == expected(short, 7)


def test_a_sequence_that_starts_over_in_another_slot_goes_on_as_before(
    expected: Any, driver: Any
) -> None:
    prompt = PROMPTS[0]
    driver.run({0: len(prompt)}, driver.start(0, prompt))
    driver.run({0: 1})
    so_far = driver.sequences[0].tokens
    driver.run({5: len(so_far)}, driver.start(5, so_far, num_prompt_tokens=len(prompt)))
    for _ in range(4):
        driver.run({5: 1})
    assert driver.sequences[5].tokens == expected(prompt, 7)


def test_a_sequence_may_fill_its_slot_to_the_last_token(expected: Any, driver: Any) -> None:
    prompt = [1 + i % 90 for i in range(64)]
    output = driver.run({0: 64}, driver.start(0, prompt))
    assert prompt + output.token_ids == expected(prompt, 1)


def test_a_failed_step_leaves_the_runner_usable(expected: Any, driver: Any) -> None:
    with pytest.raises(IndexError):
        driver.run({0: 2}, driver.start(0, [3, 4000]))
    prompt = PROMPTS[0]
    driver.run({0: len(prompt)}, driver.start(0, prompt))
    driver.run({0: 1})
    assert driver.sequences[0].tokens == expected(prompt, 2)
