from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ledger import LedgerExecutor, expected

from allmetal.cache.groups import layout_for
from allmetal.engine.engine import Engine
from allmetal.engine.limits import Limits
from allmetal.errors import ConfigError, RequestError
from allmetal.executor.contract import StepOutput, StepPlan
from allmetal.request import Logprobs, Request, SamplingParams

FULL: list[int | None] = [None, None]
HYBRID: list[int | None] = [6, None, 6]


def make(windows: list[int | None] = FULL, num_blocks: int = 64, **limits: Any) -> Engine:
    executor = LedgerExecutor(windows, num_blocks)
    settings = Limits(
        **{
            "max_model_len": 64,
            "max_num_seqs": 4,
            "max_num_batched_tokens": 8,
            "block_size": 4,
            **limits,
        }
    )
    loaded = executor.load()
    one = layout_for(loaded.kv_specs, settings.block_size, 1 << 20)
    sized = dataclasses.replace(loaded, kv_bytes=num_blocks * one.block_bytes)
    executor.load = lambda: sized  # type: ignore[method-assign]
    return Engine(executor, settings)


def request(name: str, prompt: list[int], **sampling: Any) -> Request:
    priority = sampling.pop("priority", 0)
    salt = sampling.pop("salt", "")
    eos = sampling.pop("eos", ())
    params = SamplingParams(**{"temperature": 0.0, "max_tokens": 8, **sampling})
    return Request(
        request_id=name,
        prompt_token_ids=prompt,
        sampling=params,
        priority=priority,
        cache_salt=salt,
        eos_token_ids=eos,
    )


def drain(engine: Engine, limit: int = 10_000) -> tuple[dict[str, list[int]], dict[str, str]]:
    tokens: dict[str, list[int]] = {}
    reasons: dict[str, str] = {}
    for _ in range(limit):
        if not engine.has_work:
            return tokens, reasons
        for delta in engine.step():
            tokens.setdefault(delta.request_id, []).extend(delta.token_ids)
            assert delta.request_id not in reasons, "a finished request spoke again"
            if delta.finish_reason:
                reasons[delta.request_id] = delta.finish_reason
    raise AssertionError("the engine hangs")


def assert_nothing_leaked(engine: Engine) -> None:
    pool = engine.cache.pool
    assert pool.num_free == pool.num_blocks - 1
    assert not engine.scheduler.running
    assert not len(engine.scheduler.waiting)
    assert sorted(engine.scheduler._free_slots) == list(range(engine.limits.max_num_seqs))


def test_a_prompt_longer_than_the_budget_is_computed_in_chunks() -> None:
    engine = make()
    prompt = list(range(1, 30))
    engine.add(request("a", prompt))
    tokens, reasons = drain(engine)
    assert expected(prompt, 8, FULL) == tokens["a"]
    assert reasons == {"a": "length"}
    steps = engine.executor.steps  # type: ignore[attr-defined]
    assert [s.num_tokens for s in steps[:4]] == [8, 8, 8, 5]


def test_an_equal_prefix_is_computed_once() -> None:
    engine = make()
    prompt = list(range(1, 22))
    for name in ("a", "b"):
        engine.add(request(name, prompt))
        tokens, _ = drain(engine)
        assert expected(prompt, 8, FULL) == tokens[name]
    assert engine.stats().prefix_hits == 20


def test_a_prompt_that_is_wholly_cached_still_computes_its_last_token() -> None:
    engine = make()
    prompt = list(range(1, 21))
    for name in ("a", "b"):
        engine.add(request(name, prompt))
        tokens, _ = drain(engine)
        assert expected(prompt, 8, FULL) == tokens[name]
    assert engine.stats().prefix_hits == 16


def test_another_salt_shares_nothing() -> None:
    engine = make()
    prompt = list(range(1, 22))
    for salt in ("x", "y"):
        engine.add(request(salt, prompt, salt=salt))
        drain(engine)
    assert engine.stats().prefix_hits == 0


def test_requests_in_one_batch_share_the_prefix_of_the_same_step() -> None:
    engine = make(max_num_batched_tokens=64)
    prompt = list(range(1, 14))
    engine.add(request("a", prompt))
    engine.add(request("b", prompt))
    tokens, _ = drain(engine)
    assert tokens["a"] == tokens["b"] == expected(prompt, 8, FULL)
    assert engine.stats().prefix_hits == 12


def test_a_preempted_sequence_resumes_with_identical_tokens() -> None:
    engine = make(num_blocks=12, max_model_len=40)
    prompts = {f"r{i}": [i + 1] * 9 for i in range(4)}
    for name, prompt in prompts.items():
        engine.add(request(name, prompt, max_tokens=20))
    tokens, _ = drain(engine)
    assert engine.stats().num_preemptions > 0
    for name, prompt in prompts.items():
        assert expected(prompt, 20, FULL) == tokens[name]
    assert_nothing_leaked(engine)


def test_a_prompts_logprobs_outlive_a_preemption_before_they_came() -> None:
    """The prompt's step is under way when its sequence is preempted; the token it brings is the
    first, and what comes with it goes with it."""
    engine = make(num_blocks=8, max_num_batched_tokens=64)
    executor = engine.executor
    run = executor.run  # type: ignore[attr-defined]
    entry = Logprobs(token_ids=[1], logprobs=[0.0], ranks=[1])

    def with_logprobs(step: StepPlan) -> StepOutput:
        asked = {start.slot for start in step.starts if start.sampling.prompt_logprobs is not None}
        counted = zip(step.slots, step.num_scheduled, strict=True)
        found = {slot: [entry] * (count - 1) for slot, count in counted if slot in asked}
        return dataclasses.replace(run(step), prompt_logprobs=found)

    executor.run = with_logprobs  # type: ignore[attr-defined]
    # The first fills its blocks to the brim, and takes the one more from the second.
    engine.add(request("a", [1] * 16, max_tokens=9))
    engine.add(request("b", [2] * 8, max_tokens=9, prompt_logprobs=0))
    found = []
    preempted_at_first = None
    while engine.has_work:
        for delta in engine.step():
            if delta.request_id == "b" and delta.prompt_logprobs is not None:
                found.append(delta.prompt_logprobs)
                preempted_at_first = engine.stats().num_preemptions

    assert preempted_at_first == 1
    assert found == [[None, *[entry] * 7]]


def test_a_stop_token_ends_a_sequence_and_min_tokens_holds_it_back() -> None:
    prompt = [1, 2, 3]
    want = expected(prompt, 8, FULL)
    engine = make()
    engine.add(request("a", prompt, eos=(want[2],)))
    engine.add(request("b", prompt, stop_token_ids=(want[2],)))
    engine.add(request("c", prompt, eos=(want[2],), ignore_eos=True))
    engine.add(request("d", prompt, eos=(want[2],), min_tokens=5))
    tokens, reasons = drain(engine)
    assert tokens == {"a": want[:3], "b": want[:3], "c": want, "d": want}
    assert reasons == {"a": "stop", "b": "stop", "c": "length", "d": "length"}
    assert_nothing_leaked(engine)


def test_the_model_length_ends_a_sequence_without_max_tokens() -> None:
    engine = make(max_model_len=16)
    engine.add(request("a", [1, 2, 3], max_tokens=None))
    tokens, reasons = drain(engine)
    assert len(tokens["a"]) == 13
    assert reasons["a"] == "length"


def test_blocks_behind_a_window_are_given_back() -> None:
    engine = make([6], num_blocks=8, max_model_len=200)
    engine.add(request("a", list(range(1, 40)), max_tokens=100))
    tokens, _ = drain(engine)
    assert expected(list(range(1, 40)), 100, [6]) == tokens["a"]
    assert engine.stats().num_preemptions == 0


def test_the_most_urgent_request_runs_first_and_pushes_out_a_less_urgent_one() -> None:
    engine = make(max_num_seqs=1, policy="priority")
    engine.add(request("slow", [1], max_tokens=30, priority=5))
    for _ in range(4):
        engine.step()
    engine.add(request("later", [2], max_tokens=4, priority=3))
    engine.add(request("urgent", [3], max_tokens=4, priority=-1))
    finished: list[str] = []
    while engine.has_work:
        finished += [d.request_id for d in engine.step() if d.finish_reason]
    assert finished == ["urgent", "later", "slow"]
    assert_nothing_leaked(engine)


def test_first_come_is_first_served() -> None:
    engine = make(max_num_seqs=1)
    for name, priority in (("a", 9), ("b", 0), ("c", 5)):
        engine.add(request(name, [1, 2], max_tokens=2, priority=priority))
    finished: list[str] = []
    while engine.has_work:
        finished += [d.request_id for d in engine.step() if d.finish_reason]
    assert finished == ["a", "b", "c"]


def test_a_failed_step_ends_its_requests_and_the_engine_serves_on() -> None:
    engine = make()
    engine.executor.fail_at = {2}  # type: ignore[attr-defined]
    engine.add(request("a", list(range(1, 30))))
    tokens, reasons = drain(engine)
    assert reasons == {"a": "error"}
    assert_nothing_leaked(engine)
    engine.add(request("b", list(range(1, 30))))
    tokens, reasons = drain(engine)
    assert expected(list(range(1, 30)), 8, FULL) == tokens["b"]
    assert engine.stats().prefix_hits == 0, "blocks of a failed step were reused"


@pytest.mark.parametrize(
    ("prompt", "sampling", "why"),
    [
        ([], {}, "empty"),
        ([1] * 64, {}, "64 tokens"),
        ([1, 97], {}, "vocabulary"),
        ([1], {"logit_bias": {500: 1.0}}, "logit_bias"),
        ([1], {"allowed_token_ids": (-1,)}, "allowed_token_ids"),
    ],
)
def test_a_request_that_cannot_be_served_is_refused(
    prompt: list[int], sampling: dict[str, Any], why: str
) -> None:
    engine = make()
    with pytest.raises(RequestError, match=why):
        engine.add(request("a", prompt, **sampling))
    assert not engine.has_work


def test_an_id_under_way_is_refused() -> None:
    engine = make()
    engine.add(request("a", [1]))
    with pytest.raises(RequestError, match="under way"):
        engine.add(request("a", [1]))


def test_too_little_cache_memory_is_an_error_with_a_hint() -> None:
    with pytest.raises(ConfigError, match="at least"):
        make(num_blocks=1)
    with pytest.raises(ConfigError, match="--max-model-len"):
        make(num_blocks=4, shrink_to_memory=False)


REQUESTS = st.lists(
    st.tuples(
        st.integers(1, 30),  # prompt length
        st.integers(0, 2),  # family of prompts that share a prefix
        st.integers(1, 20),  # tokens to generate
        st.integers(0, 3),  # priority
        st.integers(0, 12),  # steps before the next one arrives
        st.booleans(),  # aborted half-way
    ),
    min_size=1,
    max_size=12,
)


@settings(max_examples=150, deadline=None)
@given(
    REQUESTS,
    st.sampled_from([FULL, HYBRID, [5, 5]]),
    st.integers(14, 40),
    st.sampled_from(["fcfs", "priority"]),
    st.booleans(),
    st.booleans(),
    st.sampled_from([1, 3, 8, 32]),
)
def test_whatever_comes_the_tokens_are_right_and_nothing_leaks(
    requests: list[tuple[int, int, int, int, int, bool]],
    windows: list[int | None],
    num_blocks: int,
    policy: str,
    prefix_caching: bool,
    async_scheduling: bool,
    budget: int,
) -> None:
    engine = make(
        windows,
        num_blocks,
        policy=policy,
        prefix_caching=prefix_caching,
        async_scheduling=async_scheduling,
        max_num_batched_tokens=budget,
    )
    got: dict[str, list[int]] = {}
    reasons: dict[str, str] = {}
    wanted: dict[str, list[int]] = {}

    def take(deltas: list[Any]) -> None:
        for delta in deltas:
            got[delta.request_id] += delta.token_ids
            if delta.finish_reason:
                reasons[delta.request_id] = delta.finish_reason

    for number, (length, family, count, priority, pause, aborted) in enumerate(requests):
        prompt = [(family * 7 + i * i) % 50 for i in range(length)]
        if length >= engine.max_model_len:
            continue
        name = f"r{number}"
        count = min(count, engine.max_model_len - length)
        got[name], wanted[name] = [], expected(prompt, count, windows)
        engine.add(request(name, prompt, max_tokens=count, priority=priority))
        for _ in range(pause):
            take(engine.step())
        if aborted:
            take(engine.abort([name]))
    for _ in range(5000):
        if not engine.has_work:
            break
        take(engine.step())
    assert not engine.has_work
    for name, want in wanted.items():
        assert got[name] == want[: len(got[name])]
        assert reasons[name] == "abort" or got[name] == want
    assert_nothing_leaked(engine)
