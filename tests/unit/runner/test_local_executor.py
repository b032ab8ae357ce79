"""The executor in this process: with a thread, without, and on a device that is asynchronous."""

from __future__ import annotations

import dataclasses
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from allmetal.config import EngineConfig
from allmetal.errors import AllmetalError, ConfigError
from allmetal.executor.contract import TokenMasks
from allmetal.executor.local import LocalExecutor
from allmetal.platform.contract import Memory
from allmetal.platform.kv import CacheLayout, KVGroup
from allmetal.runner import rank
from allmetal.runner.memory import check_room, graph_bytes, kv_bytes, step_bytes

PROMPT = [5, 17, 80, 3, 9, 9, 41]
Mode = str


class FakeEvents:
    """Events of a device that has always arrived, and count what they were asked."""

    def __init__(self) -> None:
        self.recorded = 0
        self.waited = 0

    def stream(self) -> Any:
        raise NotImplementedError

    def event(self) -> Any:
        owner = self

        class Event:
            def record(self) -> None:
                owner.recorded += 1

            def synchronize(self) -> None:
                owner.waited += 1

            def query(self) -> bool:
                return False

        return Event()


@pytest.fixture(params=["thread", "inline", "asynchronous"])
def mode(request: pytest.FixtureRequest) -> Mode:
    name: str = request.param
    return name


@pytest.fixture
def executor(
    mode: Mode, folder: Path, host_device: Any, make_plan: Any, platform_of: Any
) -> Iterator[LocalExecutor]:
    plan = dataclasses.replace(make_plan("llama", 97), async_scheduling=mode != "inline")
    if mode == "asynchronous":
        host_device.asynchronous = True
        host_device.streams = FakeEvents()
    config = EngineConfig(model=str(folder))
    made = LocalExecutor(config, plan, platform=platform_of(host_device))
    loaded = made.load()
    spec = loaded.kv_specs[0]
    assert loaded.vocab_size == 97
    assert loaded.weight_bytes > 0
    made.allocate(
        CacheLayout(num_blocks=64, block_size=4, groups=(KVGroup(spec=spec, layers=(0, 1)),))
    )
    yield made
    made.close()


def test_a_masked_step_waits_for_its_masks_and_no_other_does(
    executor: Any, hand: Any, expected: Any
) -> None:
    bits = (1 << 41).to_bytes(16, "little")  # token 41 alone
    first = hand.plan({0: 7}, hand.start(0, PROMPT))
    before = executor.execute(first)
    held = executor.execute(dataclasses.replace(hand.plan({0: 1}), masked=True))
    tokens = before.result().token_ids
    assert not held.done()
    executor.mask(TokenMasks(step_id=1, slots=[0], bits=bits))
    after = executor.execute(hand.plan({0: 1}))

    assert [41] == held.result().token_ids
    sequence = [*PROMPT, *tokens, 41]
    assert [*sequence, *after.result().token_ids] == expected(sequence, 1)


def test_a_masked_step_whose_masks_never_come_hangs_nobody(
    executor: Any, hand: Any, expected: Any
) -> None:
    step = dataclasses.replace(hand.plan({0: 7}, hand.start(0, PROMPT)), masked=True)

    assert [*PROMPT, *executor.execute(step).result().token_ids] == expected(PROMPT, 1)


def test_a_masked_step_that_fails_says_so_when_it_is_asked(executor: Any, hand: Any) -> None:
    plan = hand.plan({0: 7}, hand.start(0, PROMPT))
    held = executor.execute(dataclasses.replace(plan, masked=True, slots=[10_000]))
    executor.mask(TokenMasks(step_id=0, slots=[], bits=b""))

    with pytest.raises((IndexError, RuntimeError)):
        held.result()


def test_steps_given_ahead_run_in_order(executor: Any, hand: Any, expected: Any) -> None:
    plans = [hand.plan({0: 7}, hand.start(0, PROMPT))]
    plans += [hand.plan({0: 1}) for _ in range(6)]
    futures = [executor.execute(plan) for plan in plans]
    outputs = [future.result() for future in futures]
    assert [plan.step_id for plan in plans] == [output.step_id for output in outputs]
    assert PROMPT + [output.token_ids[0] for output in outputs] == expected(PROMPT, 7)


@pytest.mark.parametrize("weights", [False, True])
def test_after_memory_was_given_back_and_taken_again_steps_give_the_same_tokens(
    executor: Any, hand: Any, expected: Any, weights: bool
) -> None:
    layout = CacheLayout(
        num_blocks=64,
        block_size=4,
        groups=(KVGroup(spec=executor._rank.model.kv_specs[0], layers=(0, 1)),),
    )
    first = executor.execute(hand.plan({0: 7}, hand.start(0, PROMPT))).result()
    held = weakref.ref(executor._rank.runner._state)
    model = weakref.ref(executor._rank.model)

    assert executor.release(weights=weights) >= 0
    assert held() is None
    assert (model() is None) == weights
    assert executor.release(weights=weights) >= 0  # there is nothing more, and that is no error
    executor.restore(layout)

    again = executor.execute(hand.plan({1: 7}, hand.start(1, PROMPT))).result()
    assert first.token_ids == again.token_ids
    assert PROMPT + first.token_ids == expected(PROMPT, 1)


def test_a_result_may_be_taken_twice(executor: Any, hand: Any) -> None:
    future = executor.execute(hand.plan({0: 7}, hand.start(0, PROMPT)))
    assert future.result() == future.result()
    assert future.done()


def test_a_failed_step_raises_from_its_future_only(executor: Any, hand: Any, expected: Any) -> None:
    failing = executor.execute(hand.plan({0: 2}, hand.start(0, [3, 4000])))
    fine = executor.execute(hand.plan({1: 7}, hand.start(1, PROMPT)))
    with pytest.raises(IndexError):
        failing.result()
    assert PROMPT + fine.result().token_ids == expected(PROMPT, 1)


def test_only_a_device_that_blocks_gets_a_thread(
    executor: Any, hand: Any, mode: Mode, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = executor._rank.model
    forward = model.forward
    threads = []

    def noted(batch: Any) -> torch.Tensor:
        threads.append(threading.current_thread())
        result: torch.Tensor = forward(batch)
        return result

    monkeypatch.setattr(model, "forward", noted)
    executor.execute(hand.plan({0: 7}, hand.start(0, PROMPT))).result()
    assert (threads[0] is threading.current_thread()) == (mode != "thread")


def test_closing_joins_the_thread_and_lets_go(executor: Any) -> None:
    executor.close()
    executor.close()
    assert not [t for t in threading.enumerate() if t.name.startswith("allmetal-rank")]


def test_a_platform_that_is_gone_is_named(folder: Path, make_plan: Any) -> None:
    executor = LocalExecutor(EngineConfig(model=str(folder)), make_plan("llama", 97))
    with pytest.raises(AllmetalError, match="'host'"):
        executor.load()


def test_cache_memory_is_the_share_less_weights_and_a_step(make_plan: Any) -> None:
    plan = make_plan("llama", 97)
    free = 1 << 30
    left = kv_bytes(plan, free, 1 << 20, free - (1 << 20))
    assert left == free // 2 - (1 << 20) - step_bytes(plan)


def test_asked_cache_memory_is_given_or_refused(make_plan: Any) -> None:
    plan = dataclasses.replace(make_plan("llama", 97), kv_cache_memory=1 << 20)
    assert kv_bytes(plan, 1 << 30, 0, 1 << 30) == 1 << 20
    with pytest.raises(ConfigError, match="were asked for"):
        kv_bytes(plan, 1 << 30, 0, 1 << 19)


def test_no_memory_left_is_an_error_that_says_what_took_it(make_plan: Any) -> None:
    with pytest.raises(ConfigError, match="no memory is left"):
        kv_bytes(make_plan("llama", 97), 1 << 20, 1 << 20, 0)


def test_weights_that_do_not_fit_are_refused_with_both_sizes(make_plan: Any) -> None:
    plan = make_plan("llama", 97)
    check_room(plan, 1 << 30, 1 << 20)
    with pytest.raises(ConfigError, match=r"take 131\.20 GiB in float32, .* has 79\.10 GiB free"):
        check_room(plan, int(79.1 * 2**30), int(131.2 * 2**30))


def test_a_model_too_large_for_the_device_is_refused_before_it_is_loaded(
    folder: Path,
    make_plan: Any,
    platform_of: Any,
    host_device: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(type(host_device), "memory", lambda _: Memory(free=10_000, total=1 << 30))
    monkeypatch.setattr(rank, "_readers", lambda *_, **__: pytest.fail("it was loaded"))
    platform = platform_of(host_device)
    executor = LocalExecutor(
        EngineConfig(model=str(folder)), make_plan("llama", 97), platform=platform
    )
    with pytest.raises(ConfigError, match=r"the model's weights take 0\.00 GiB"):
        executor.load()


def test_memory_for_recorded_steps_is_set_aside(make_plan: Any) -> None:
    plan, free = make_plan("llama", 97), 1 << 33
    decode = dataclasses.replace(plan, graph_sizes=(1, 8))
    mixed = dataclasses.replace(decode, graph_tokens=(64, 4096))
    assert graph_bytes(plan) == 0
    assert 0 < graph_bytes(decode) < graph_bytes(mixed)
    left = kv_bytes(plan, free, 0, free)
    assert left - kv_bytes(mixed, free, 0, free) == graph_bytes(mixed)
