"""Steps with prompts that are recorded and replayed give the tokens of steps that are not."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from recordable import OFFERED, DeviceAttention, Events, RecordableAttention
from recorder import Recorder

from allmetal.platform.batch import DeviceOnly
from allmetal.request import SamplingParams

SIZES, TOKENS = (1, 2), (4, 8, 16, 32, 100)
PROMPTS = [[5, 17, 80, 3, 9, 9, 41], [60], [2, 4, 8, 16, 32, 64, 31, 62, 27, 54, 11]]


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture(params=["asynchronous", "synchronous"])
def device(request: pytest.FixtureRequest, host_device: Any, recorder: Recorder) -> Any:
    host_device.graphs = recorder
    host_device.asynchronous = request.param == "asynchronous"
    host_device.streams = Events() if host_device.asynchronous else None
    return host_device


@pytest.fixture
def driver(llama: Any, driver_of: Any, device: Any) -> Any:
    made = driver_of(llama, device, OFFERED, graph_sizes=SIZES, graph_tokens=TOKENS)
    assert made.decisions == ()
    return made


def counted(driver: Any) -> Callable[..., int]:
    """Run a step; how often something was replayed."""
    recorder = driver.runner._device.graphs

    def run(counts: Mapping[int, int], *starts: Any) -> int:
        before = recorder.replays
        driver.run(counts, *starts)
        return int(recorder.replays - before)

    return run


def test_every_step_is_replayed_and_tokens_are_those_of_the_model(
    expected: Any, driver: Any
) -> None:
    run = counted(driver)
    first, second, third = PROMPTS
    assert run({4: 3}, driver.start(4, first)) == 1  # no sequence gets a token
    assert run({4: 4}) == 1
    assert run({4: 1, 1: 1}, driver.start(1, second)) == 1  # a start, in a step of single tokens
    assert run({4: 1, 2: 5, 1: 1}, driver.start(2, third)) == 1  # some get a token
    assert run({2: 6, 1: 1, 4: 1}) == 1
    for slots in ((4, 1, 2), (2, 4), (1, 2, 4), (4,)):
        for _ in range(5):
            assert run(dict.fromkeys(slots, 1)) == 1
    for slot, prompt in ((4, first), (1, second), (2, third)):
        tokens = driver.sequences[slot].tokens
        assert tokens == expected(prompt, len(tokens) - len(prompt))


@pytest.mark.parametrize("chunk", [1, 4, 5, 11])
def test_a_prompt_in_chunks_of_any_size(expected: Any, driver: Any, chunk: int) -> None:
    prompt = PROMPTS[2]
    run, left, starts = counted(driver), len(prompt), [driver.start(3, prompt)]
    while left:
        assert run({3: min(chunk, left)}, *starts) == 1
        left, starts = left - min(chunk, left), []
    for _ in range(6):
        assert run({3: 1}) == 1
    assert driver.sequences[3].tokens == expected(prompt, 7)


def test_padding_longer_than_a_sequence_can_be_takes_several(expected: Any, driver: Any) -> None:
    """100 tokens are recorded, and a sequence has 64 at most."""
    run, prompt = counted(driver), (PROMPTS[2] * 4)[:33]
    assert run({0: 33}, driver.start(0, prompt)) == 1
    full = dict.fromkeys(range(1, 6), 10)
    starts = [driver.start(slot, PROMPTS[2]) for slot in full]
    assert run({0: 1, **full}, *starts) == 1  # no sequence is left over but the padding
    assert run({0: 1} | dict.fromkeys(full, 1)) == 1
    assert driver.sequences[0].tokens == expected(prompt, 3)
    assert driver.sequences[5].tokens == expected(PROMPTS[2], 1)


def test_more_tokens_than_are_recorded_are_computed_all_the_same(
    expected: Any, driver: Any
) -> None:
    run = counted(driver)
    prompt = (PROMPTS[2] * 6)[:60]
    starts = [driver.start(slot, prompt) for slot in (0, 1)]
    assert run({0: 60, 1: 60}, *starts) == 0
    assert run({0: 1, 1: 1}) == 1
    assert driver.sequences[1].tokens == expected(prompt, 2)


def test_steps_launched_ahead_keep_their_own_results(expected: Any, driver: Any) -> None:
    first, second, third = PROMPTS
    plans = [driver.plan({0: 7}, driver.start(0, first))]
    plans += [driver.plan({0: 1, 1: 1}, driver.start(1, second))]
    plans += [driver.plan({0: 1, 1: 1, 2: 11}, driver.start(2, third))]
    plans += [driver.plan({0: 1, 1: 1, 2: 1}) for _ in range(5)]
    launched = [driver.runner.launch(plan) for plan in plans]
    for plan, step in zip(plans, launched, strict=True):
        driver.note(plan, step.collect())
    for slot, prompt in enumerate(PROMPTS):
        tokens = driver.sequences[slot].tokens
        assert tokens == expected(prompt, len(tokens) - len(prompt))


def test_sampling_and_logprobs_follow_the_hidden_states(
    llama: Any, driver_of: Any, driver: Any, recorder: Recorder
) -> None:
    kinds: list[dict[str, Any]] = [
        {"temperature": 0.9, "top_k": 20, "logprobs": 2},
        {"temperature": 0.0, "prompt_logprobs": 3},
        {"temperature": 0.0, "repetition_penalty": 1.3},
    ]

    def outputs(driver: Any) -> list[Any]:
        starts = [
            driver.start(slot, PROMPTS[2], SamplingParams(max_tokens=None, **kind), seed=slot)
            for slot, kind in enumerate(kinds)
        ]
        made = [driver.run({0: 11, 1: 4}, starts[0], starts[1])]
        made.append(driver.run({0: 1, 1: 7, 2: 3}, starts[2]))
        made.append(driver.run({0: 1, 1: 1, 2: 8}))
        return made + [driver.run({0: 1, 1: 1, 2: 1}) for _ in range(5)]

    plain, replayed = outputs(driver_of(llama)), outputs(driver)
    assert recorder.replays == 8
    for one, other in zip(plain, replayed, strict=True):
        assert one.token_ids == other.token_ids
        for mine, theirs in zip(one.logprobs or (), other.logprobs or (), strict=True):
            if mine is not None and theirs is not None:
                assert mine.logprobs == pytest.approx(theirs.logprobs, abs=1e-4)
        assert one.prompt_logprobs.keys() == other.prompt_logprobs.keys()
        for slot, entries in one.prompt_logprobs.items():
            for mine, theirs in zip(entries, other.prompt_logprobs[slot], strict=True):
                assert mine.token_ids == theirs.token_ids
                assert mine.logprobs == pytest.approx(theirs.logprobs, abs=1e-4)


def single_tokens_only(op: Any) -> Any:
    """An attention op that must know on the host how many new tokens there are."""

    class Single(DeviceAttention):
        def __call__(self, q: torch.Tensor, cache: Any, batch: Any, sinks: Any = None) -> Any:
            assert len(batch.host_query_lens)
            return super().__call__(q, cache, batch, sinks)

    return Single(op.spec, op.exact)


def test_kernels_that_cannot_do_prompts_leave_decoding_recorded(
    llama: Any, expected: Any, driver_of: Any, device: Any
) -> None:
    offered = {"attention": (RecordableAttention(single_tokens_only),)}
    driver = driver_of(llama, device, offered, graph_sizes=SIZES, graph_tokens=TOKENS)
    (row,) = driver.decisions
    assert row.asked == "2 sizes up to 2, prompts up to 100 tokens"
    assert row.got == "2 sizes up to 2"
    assert "at 100 tokens: GraphError" in row.reason
    run = counted(driver)
    assert run({0: 7}, driver.start(0, PROMPTS[0])) == 0
    assert run({0: 1}) == 1
    assert driver.sequences[0].tokens == expected(PROMPTS[0], 2)


def test_a_recorded_step_knows_no_number_on_the_host() -> None:
    with pytest.raises(Exception, match="on the host"):
        assert 1 in DeviceOnly()
