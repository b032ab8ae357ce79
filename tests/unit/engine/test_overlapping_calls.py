"""One LLM, several calls at once: each gets its own outputs, and leaves nothing behind."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pytest

from allmetal import LLM, SamplingParams
from allmetal.errors import EngineDeadError, RequestError

GREEDY = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
PROMPTS = ["Once upon a", "The quick", "One engine", "Brot und"]


def make(model: Path) -> LLM:
    return LLM(str(model), platform="cpu", kv_cache_memory=1 << 22, max_model_len=128, threads=1)


@pytest.fixture(scope="module")
def llm(tiny_llama: Path) -> Iterator[LLM]:
    with make(tiny_llama) as made:
        yield made


@pytest.fixture(scope="module")
def expected(llm: LLM) -> list[str]:
    return [output.outputs[0].text for output in llm.generate(PROMPTS, GREEDY)]


def is_idle(llm: LLM) -> bool:
    stats = llm.engine.stats()
    return not (llm.engine.has_work or stats.num_running or stats.num_waiting or stats.kv_usage)


def test_two_streams_taken_in_turn_get_their_own_outputs(llm: LLM, expected: list[str]) -> None:
    streams = [llm.stream(prompt, GREEDY) for prompt in PROMPTS[:2]]
    last: list[Any] = [None, None]

    for outputs in zip_longest(*streams):
        for index, output in enumerate(outputs):
            assert output is None or output.prompt == PROMPTS[index]
            last[index] = output or last[index]

    assert [output.outputs[0].text for output in last] == expected[:2]
    assert is_idle(llm)


def test_a_stream_left_aside_goes_on_after_another_call(llm: LLM, expected: list[str]) -> None:
    stream = llm.stream(PROMPTS[0], GREEDY)
    next(stream)

    [other] = llm.generate(PROMPTS[1], GREEDY)
    rest = list(stream)

    assert other.outputs[0].text == expected[1]
    assert rest[-1].finished
    assert rest[-1].outputs[0].text == expected[0]
    assert is_idle(llm)


def test_threads_share_a_model(llm: LLM, expected: list[str]) -> None:
    found: dict[int, str] = {}

    def ask(index: int) -> None:
        found[index] = llm.generate(PROMPTS[index], GREEDY)[0].outputs[0].text

    threads = [threading.Thread(target=ask, args=(index,)) for index in range(len(PROMPTS))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)

    assert [found.get(index) for index in range(len(PROMPTS))] == expected
    assert is_idle(llm)


@pytest.mark.parametrize("wrong", [None, 5, b"ab", {"prompt": "x"}, [[5, "a"]], [[5], None], [0.5]])
def test_what_is_no_prompt_is_refused_and_leaves_nothing(llm: LLM, wrong: Any) -> None:
    with pytest.raises(RequestError):
        llm.generate(wrong, GREEDY)

    assert is_idle(llm)


def test_an_interrupted_call_leaves_the_others_whole(
    llm: LLM, expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C comes while a step is waited for."""
    stream = llm.stream(PROMPTS[0], GREEDY)
    next(stream)

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    step, in_flight = llm.engine.step, llm.engine._in_flight

    def press_once() -> Any:
        monkeypatch.setattr(llm.engine, "step", step)
        scheduled, future = in_flight[0]
        waiting = type("Waiting", (), {"result": interrupted})()
        in_flight[0] = (scheduled, waiting)
        try:
            return step()
        finally:
            if in_flight and in_flight[0][1] is waiting:
                in_flight[0] = (scheduled, future)

    monkeypatch.setattr(llm.engine, "step", press_once)
    with pytest.raises(KeyboardInterrupt):
        llm.generate(PROMPTS[1], GREEDY)

    assert list(stream)[-1].outputs[0].text == expected[0]
    assert is_idle(llm)


def test_after_closing_calls_say_so(tiny_llama: Path) -> None:
    llm = make(tiny_llama)
    stream = llm.stream(PROMPTS[0], GREEDY)
    next(stream)

    llm.close()

    with pytest.raises(EngineDeadError, match="closed"):
        list(stream)
    with pytest.raises(EngineDeadError, match="closed"):
        llm.generate(PROMPTS[0], GREEDY)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_request_with_nothing_to_choose_fails_alone(
    llm: LLM, expected: list[str], temperature: float
) -> None:
    impossible = SamplingParams(
        temperature=temperature, max_tokens=8, allowed_token_ids=(5,), bad_word_ids=((5,),)
    )

    failed, other = llm.generate([PROMPTS[0], PROMPTS[1]], [impossible, GREEDY])

    assert failed.outputs[0].finish_reason == "error"
    assert failed.outputs[0].token_ids == []
    assert "no token can be chosen" in (failed.error or "")
    assert other.outputs[0].text == expected[1]
    assert is_idle(llm)
