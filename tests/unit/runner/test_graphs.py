"""Decode steps that are recorded and replayed give the tokens of steps that are not.

The recorder runs torch's operators again, with the numbers they had when they were recorded.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from recordable import OFFERED, DeviceAttention, Events, RecordableAttention
from recorder import Recorder

from allmetal.errors import FallbackError, GraphError
from allmetal.executor.contract import NO_TOKEN
from allmetal.platform.batch import DeviceOnly
from allmetal.platform.policy import Policies
from allmetal.request import SamplingParams

SIZES = (1, 2, 4, 6)
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


def counted(driver: Any) -> Callable[[Mapping[int, int]], int]:
    """Run a step; whether it was replayed."""
    recorder = driver.runner._device.graphs

    def run(counts: Mapping[int, int], *starts: Any) -> int:
        before = recorder.replays
        driver.run(counts, *starts)
        return int(recorder.replays - before)

    return run


# ---- tokens --------------------------------------------------------------------------------


def test_tokens_are_those_of_the_model_while_sequences_come_and_go(
    llama: Any, expected: Any, driver_of: Any, device: Any, recorder: Recorder
) -> None:
    driver = driver_of(llama, device, OFFERED, graph_sizes=SIZES)
    assert driver.decisions == ()
    assert recorder.captures == 3 * len(SIZES)  # a step, and two kinds of draws
    run = counted(driver)
    first, second, third = PROMPTS
    assert not run({4: len(first)}, driver.start(4, first))
    assert run({4: 1})
    assert not run({4: 1, 1: 1}, driver.start(1, second))  # a prompt of one token starts
    assert run({4: 1, 1: 1})
    assert not run({4: 1, 2: 10, 1: 1}, driver.start(2, third))
    assert run({1: 1, 2: 1, 4: 1})  # the last token of the third prompt among them
    for slots in ((4, 1, 2), (2, 4), (1, 2, 4), (4,), (2, 1), (1,)):
        for _ in range(5):
            assert run(dict.fromkeys(slots, 1)) == 1
    for slot, prompt in ((4, first), (1, second), (2, third)):
        tokens = driver.sequences[slot].tokens
        assert tokens == expected(prompt, len(tokens) - len(prompt))


def test_what_was_recorded_is_let_go_and_recorded_anew(
    llama: Any, expected: Any, driver_of: Any, device: Any, recorder: Recorder
) -> None:
    driver = driver_of(llama, device, OFFERED, graph_sizes=SIZES)
    graphs = weakref.ref(driver.runner._graphs.decode)
    before, prompt = recorder.captures, PROMPTS[0]

    driver.runner.release()
    gc.collect()
    assert graphs() is None
    assert () == driver.runner.allocate(driver.layout)

    assert 2 * before == recorder.captures
    run = counted(driver)
    run({4: len(prompt)}, driver.start(4, prompt))
    assert all(run({4: 1}) for _ in range(5))
    tokens = driver.sequences[4].tokens
    assert tokens == expected(prompt, len(tokens) - len(prompt))


def test_where_recording_computes_a_size_is_recorded_when_it_first_comes(
    llama: Any, expected: Any, driver_of: Any, device: Any, recorder: Recorder
) -> None:
    recorder.computes = True
    driver = driver_of(llama, device, OFFERED, graph_sizes=SIZES)
    assert driver.decisions == ()
    assert recorder.captures == 1, "the least shows whether steps can be recorded at all"
    run = counted(driver)
    first, second, _ = PROMPTS
    run({4: len(first), 1: len(second)}, driver.start(4, first), driver.start(1, second))
    assert not run({4: 1, 1: 1})
    assert recorder.captures == 2
    assert all(run({4: 1, 1: 1}) for _ in range(4))
    assert run({1: 1})
    assert recorder.captures == 2
    for slot, prompt in ((4, first), (1, second)):
        tokens = driver.sequences[slot].tokens
        assert tokens == expected(prompt, len(tokens) - len(prompt))


def test_a_size_that_cannot_be_recorded_when_it_comes_is_launched_by_hand(
    llama: Any,
    expected: Any,
    driver_of: Any,
    device: Any,
    recorder: Recorder,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail(number: int) -> None:
        if number == 2:
            raise GraphError("something waits")

    recorder.computes, recorder.fail = True, fail
    driver = driver_of(llama, device, OFFERED, graph_sizes=(1, 2))
    first, second, _ = PROMPTS
    starts = driver.start(4, first), driver.start(1, second)
    driver.run({4: len(first), 1: len(second)}, *starts)
    for _ in range(4):
        driver.run({4: 1, 1: 1})
    assert recorder.captures == 2, "it is not tried twice"
    assert [record.message for record in caplog.records if "by hand" in record.message] == [
        "steps of 2 sequences are launched by hand: GraphError: something waits"
    ]
    assert counted(driver)({4: 1})
    for slot, prompt in ((4, first), (1, second)):
        tokens = driver.sequences[slot].tokens
        assert tokens == expected(prompt, len(tokens) - len(prompt))


def test_steps_launched_ahead_keep_their_own_tokens(
    llama: Any, expected: Any, driver_of: Any, device: Any, recorder: Recorder
) -> None:
    driver = driver_of(llama, device, OFFERED, graph_sizes=SIZES)
    prompt = PROMPTS[0]
    plans = [driver.plan({3: len(prompt)}, driver.start(3, prompt))]
    plans += [driver.plan({3: 1}) for _ in range(9)]
    launched = [driver.runner.launch(plan) for plan in plans]
    assert recorder.replays == 9
    assert prompt + [step.collect().token_ids[0] for step in launched] == expected(prompt, 10)


def test_a_slot_taken_again_keeps_nothing_of_its_last_sequence(
    llama: Any, expected: Any, driver_of: Any, device: Any
) -> None:
    driver = driver_of(llama, device, OFFERED, graph_sizes=SIZES)
    for prompt in (PROMPTS[2], PROMPTS[0], PROMPTS[1]):
        driver.run({5: len(prompt)}, driver.start(5, prompt))
        for _ in range(7):
            driver.run({5: 1})
        assert driver.sequences[5].tokens == expected(prompt, 8)


KINDS: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 0.9, "top_k": 20, "top_p": 0.9, "min_p": 0.01},
    {"temperature": 0.0, "repetition_penalty": 1.3, "presence_penalty": 0.7},
    {"temperature": 1.0, "logit_bias": {3: 2.0}, "bad_word_ids": ((3, 4), (5,)), "logprobs": 3},
    {"temperature": 0.0, "allowed_token_ids": (1, 2, 3, 40), "prompt_logprobs": 2},
    {"temperature": 0.7, "min_tokens": 4, "frequency_penalty": 1.0},
    {"temperature": 1.1},
]
DRAWN = (1, 6)


@pytest.mark.parametrize(
    "batches",
    [[(0, 1, 2, 3, 4, 5)], [(number,) for number in range(len(KINDS))], [(0, 1, 6), (6, 0)]],
    ids=["all kinds", "each alone", "greedy and drawn"],
)
def test_rows_that_ask_for_more_than_the_argmax_get_it(
    llama: Any, driver_of: Any, device: Any, recorder: Recorder, batches: list[tuple[int, ...]]
) -> None:
    def outputs(driver: Any) -> list[Any]:
        made = []
        for batch in batches:
            starts = [
                driver.start(
                    slot, PROMPTS[0], SamplingParams(max_tokens=None, **KINDS[kind]), seed=kind
                )
                for slot, kind in enumerate(batch)
            ]
            slots = range(len(batch))
            made.append(driver.run(dict.fromkeys(slots, len(PROMPTS[0])), *starts))
            made += [driver.run(dict.fromkeys(slots, 1)) for _ in range(12)]
        return made

    plain = outputs(driver_of(llama))
    replayed = outputs(driver_of(llama, device, OFFERED, graph_sizes=SIZES))
    drawn = sum(set(batch) <= {0, *DRAWN} and set(batch) != {0} for batch in batches)
    assert recorder.replays == 12 * (len(batches) + drawn)
    for one, other in zip(plain, replayed, strict=True):
        assert one.token_ids == other.token_ids
        assert (one.logprobs is None) == (other.logprobs is None)
        for mine, theirs in zip(one.logprobs or (), other.logprobs or (), strict=True):
            assert (mine is None) == (theirs is None)
            if mine is not None and theirs is not None:
                assert mine.token_ids == theirs.token_ids
                assert mine.logprobs == pytest.approx(theirs.logprobs, abs=1e-4)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_with_nothing_to_choose_from_gets_no_token_and_harms_no_other(
    llama: Any, driver_of: Any, device: Any, recorder: Recorder, temperature: float
) -> None:
    kind = SamplingParams(max_tokens=None, temperature=temperature)

    @torch.inference_mode()
    def outputs(driver: Any) -> list[list[int]]:
        starts = [driver.start(slot, PROMPTS[slot], kind, seed=slot) for slot in range(3)]
        driver.run({0: 7, 1: 1, 2: 11}, *starts)
        for block in driver.runner._model._blocks:
            block.attention._cache[1].fill_(float("nan"))  # the first block of the first sequence
        return [driver.run({0: 1, 1: 1, 2: 1}).token_ids for _ in range(4)]

    plain = outputs(driver_of(llama))
    replayed = outputs(driver_of(llama, device, OFFERED, graph_sizes=SIZES))
    assert recorder.replays == (8 if temperature else 4)
    assert plain == replayed
    assert [step[0] for step in replayed] == [NO_TOKEN] * 4
    assert NO_TOKEN not in [token for step in replayed for token in step[1:]]


# ---- what is not replayed ------------------------------------------------------------------


def test_steps_that_no_graph_can_do_are_not_replayed(
    llama: Any, expected: Any, driver_of: Any, device: Any
) -> None:
    driver = driver_of(llama, device, OFFERED, graph_sizes=(1, 2))
    run = counted(driver)
    first, second, third = PROMPTS
    assert not run({0: 3}, driver.start(0, first))
    assert not run({0: 1})  # of a prompt, whose next token is known already
    assert not run({0: 3})
    assert run({0: 1})
    run({0: 1, 1: 1, 2: 11}, driver.start(1, second), driver.start(2, third))
    assert not run({0: 1, 1: 1, 2: 1})  # more than the largest
    plan = driver.plan({0: 1, 1: 1})
    before = driver.runner._device.graphs.replays
    for group in range(driver.num_groups):
        plan.new_blocks.append((0, group, 12, [500, 501]))  # far ahead of where it is
    driver.note(plan, driver.runner.execute(plan))
    assert before == driver.runner._device.graphs.replays
    assert run({0: 1, 1: 1})
    for slot, prompt in enumerate(PROMPTS):
        tokens = driver.sequences[slot].tokens
        assert tokens == expected(prompt, len(tokens) - len(prompt))


# ---- what cannot be recorded ---------------------------------------------------------------


def served(driver: Any, expected: Any) -> bool:
    prompt = PROMPTS[0]
    driver.run({0: len(prompt)}, driver.start(0, prompt))
    for _ in range(6):
        driver.run({0: 1})
    return bool(driver.sequences[0].tokens == expected(prompt, 7))


def test_a_kernel_that_reads_lengths_on_the_host_is_told_and_served_without(
    llama: Any, expected: Any, driver_of: Any, device: Any, recorder: Recorder
) -> None:
    driver = driver_of(llama, device, graph_sizes=SIZES)
    (row,) = driver.decisions
    assert (row.feature, row.asked, row.got) == ("graph_capture", "4 sizes up to 6", "off")
    assert row.fallback
    assert row.warn
    assert "at 6 sequences" in row.reason
    assert "lengths on the host" in row.reason
    assert served(driver, expected)
    assert not recorder.replays


def waiting(op: Any) -> Any:
    """An attention op that asks the device for a number."""

    class Waiting(DeviceAttention):
        def __call__(self, q: torch.Tensor, cache: Any, batch: Any, sinks: Any = None) -> Any:
            if batch.seq_lens.max() > 0:
                return super().__call__(q, cache, batch, sinks)
            return q

    return Waiting(op.spec, op.exact)


def test_a_kernel_that_waits_for_the_device_is_told_and_served_without(
    llama: Any, expected: Any, driver_of: Any, device: Any
) -> None:
    offered = {"attention": (RecordableAttention(waiting),)}
    driver = driver_of(
        llama, device, offered, graph_sizes=SIZES, policies=Policies(named={"*": "allow"})
    )
    (row,) = driver.decisions
    assert "waits for the device" in row.reason
    assert not row.warn
    assert served(driver, expected)


def test_the_policy_error_refuses_to_go_on_without(llama: Any, driver_of: Any, device: Any) -> None:
    with pytest.raises(FallbackError, match="graph_capture") as caught:
        driver_of(llama, device, graph_sizes=SIZES, policies=Policies(strict=True))
    assert caught.value.hint is not None
    assert caught.value.hint.startswith("--no-graph-capture")


def test_sizes_for_which_memory_is_missing_are_left_out(
    llama: Any, expected: Any, driver_of: Any, device: Any, recorder: Recorder
) -> None:
    def no_room_for_two(number: int) -> None:
        if number <= 2:
            raise torch.OutOfMemoryError("tried to allocate\nmore details")

    recorder.fail = no_room_for_two
    driver = driver_of(llama, device, OFFERED, graph_sizes=SIZES)
    (row,) = driver.decisions
    assert row.got == "2 sizes up to 2"
    assert row.reason == "at 6 sequences: OutOfMemoryError: tried to allocate"
    assert served(driver, expected)
    assert recorder.replays == 6


def test_draws_that_cannot_be_recorded_are_told_and_made_without(
    llama: Any, expected: Any, driver_of: Any, device: Any, recorder: Recorder
) -> None:
    def no_draws(number: int) -> None:
        if number > len(SIZES):
            raise RuntimeError("random numbers come from the host")

    recorder.fail = no_draws
    driver = driver_of(llama, device, OFFERED, graph_sizes=SIZES)
    (row,) = driver.decisions
    assert row.got == "4 sizes up to 6, greedy only"
    assert "not greedy: RuntimeError: random numbers come from the host" in row.reason
    assert served(driver, expected)
    assert recorder.replays == 6
    kind = SamplingParams(max_tokens=None, temperature=1.0)
    tokens = []
    for made in (driver, driver_of(llama)):
        made.run({1: 7}, made.start(1, PROMPTS[0], kind, seed=5))
        for _ in range(6):
            made.run({1: 1})
        tokens.append(made.sequences[1].tokens)
    assert tokens[0] == tokens[1]
    assert recorder.replays == 12


def test_a_device_that_records_nothing_is_told_of(
    llama: Any, expected: Any, driver_of: Any, host_device: Any
) -> None:
    driver = driver_of(llama, host_device, OFFERED, graph_sizes=SIZES)
    (row,) = driver.decisions
    assert "records nothing" in row.reason
    assert served(driver, expected)


# ---- the recorder itself -------------------------------------------------------------------


def test_the_recorder_freezes_numbers_and_refuses_to_wait() -> None:
    x, out, number = torch.ones(3), torch.zeros(3), [2.0]

    def run() -> None:
        torch.add(x * number[0], x.cumsum(0)[1:2], out=out)

    graph = Recorder().capture(run)
    number[0] = 100.0
    x.copy_(torch.tensor([1.0, 10.0, 100.0]))
    graph.replay()
    assert out.tolist() == [13.0, 31.0, 211.0]
    for wait in (lambda: x.sum().item(), lambda: x[x > 0], lambda: bool(x[0] > 0), x.nonzero):
        for inference in (True, False):
            with torch.inference_mode(inference), pytest.raises(GraphError, match="waits"):
                Recorder().capture(wait)


def test_lengths_of_a_recorded_step_cannot_be_read() -> None:
    lengths = DeviceOnly()
    reads: list[Callable[[Any], Any]] = [len, list, max, lambda x: x[0], lambda x: 1 in x]
    for read in reads:
        with pytest.raises(GraphError, match="on the host"):
            read(lengths)
