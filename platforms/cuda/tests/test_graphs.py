"""On a GPU: recorded steps give the host's tokens, masked or not and after a sleep, and a steady
step never waits."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny import make_tiny_llama

from allmetal.config import EngineConfig
from allmetal.constraint import Thinking
from allmetal.engine.answers import answer
from allmetal.engine.asks import Sleep, Wake
from allmetal.engine.engine import Engine
from allmetal.platform.specs import FAMILIES
from allmetal.request import Request, SamplingParams, TokenDelta

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

REFERENCE = dict.fromkeys(FAMILIES, "reference")
LENGTHS = [3, 40, 17, 1, 90, 5, 23, 64, 33, 11]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_llama(tmp_path_factory.mktemp("tiny"))


def engine_of(folder: Path, **options: Any) -> Engine:
    config = EngineConfig(
        model=str(folder),
        dtype="float32",
        **{
            "kv_cache_memory": 1 << 22,
            "max_num_seqs": 6,
            "max_num_batched_tokens": 64,
            **options,
        },
    )
    return Engine.from_config(config)


def requests(**sampling: Any) -> list[Request]:
    generator = torch.Generator().manual_seed(0)
    kind = {"temperature": 0.0, "ignore_eos": True, **sampling}
    return [
        Request(
            request_id=f"r{number}",
            prompt_token_ids=torch.randint(2, 300, (length,), generator=generator).tolist(),
            sampling=SamplingParams(max_tokens=60 + 6 * number, **kind),
        )
        for number, length in enumerate(LENGTHS)
    ]


def serve(engine: Engine, asked: list[Request]) -> dict[str, list[int]]:
    """Their tokens; they come two at a time, so that batches grow and shrink."""
    tokens: dict[str, list[int]] = {request.request_id: [] for request in asked}
    waiting = list(asked)
    while waiting or engine.has_work:
        for request in waiting[:2]:
            engine.add(request)
        del waiting[:2]
        for _ in range(7):
            for delta in engine.step():
                assert delta.error is None, delta.error
                tokens[delta.request_id] += delta.token_ids
    return tokens


def replays(engine: Engine) -> list[int]:
    """The sizes of graphs that are replayed from now on."""
    graphs = engine.executor._runner._graphs.decode  # type: ignore[attr-defined]
    used: list[int] = []

    class Counted:
        def __init__(self, size: int, graph: Any) -> None:
            self.size, self.graph = size, graph

        def replay(self) -> None:
            used.append(self.size)
            self.graph.replay()

    launches = graphs._steps.launches
    for size, launch in launches.items():
        launches[size] = replace(launch, graph=Counted(size, launch.graph))
    return used


@contextmanager
def no_waiting() -> Iterator[None]:
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_greedy_tokens_are_those_of_the_reference_on_the_host(folder: Path) -> None:
    host = engine_of(folder, platform="cpu", kernel=REFERENCE, threads=1)
    expected = serve(host, requests())
    host.close()
    engine = engine_of(folder, platform="cuda", kv_cache_memory=1 << 18, graph_capture=True)
    used = replays(engine)
    assert expected == serve(engine, requests())
    assert set(used) == {1, 2, 4, 6}
    assert engine.stats().num_preemptions > 0
    engine.close()
    plain = engine_of(folder, platform="cuda", graph_capture=False)
    assert expected == serve(plain, requests())
    plain.close()


@pytest.mark.parametrize(
    "sampling",
    [{}, {"temperature": 0.8, "top_p": 0.9, "seed": 3}, {"repetition_penalty": 1.2, "logprobs": 2}],
    ids=["greedy", "sampled", "penalised"],
)
def test_a_steady_step_never_waits_for_the_device(folder: Path, sampling: dict[str, Any]) -> None:
    engine = engine_of(folder, platform="cuda", graph_capture=True)
    for request in requests(**sampling)[:5]:
        engine.add(request)
    for _ in range(12):
        engine.step()
    used = replays(engine)
    with no_waiting():
        deltas = [engine.step() for _ in range(30)]
    assert used == [6] * 30
    assert all(len(step) == 5 for step in deltas)
    engine.close()


def finish(engine: Engine, found: dict[str, list[int]]) -> dict[str, list[int]]:
    while engine.has_work:
        take(engine.step(), found)
    return found


def take(deltas: list[TokenDelta], found: dict[str, list[int]]) -> None:
    for delta in deltas:
        assert delta.error is None, delta.error
        found.setdefault(delta.request_id, []).extend(delta.token_ids)


def test_masks_hold_in_recorded_steps_and_leave_the_others_alone(folder: Path) -> None:
    forced = (40, 41, 7)
    budgets = {1: 4, 3: 12}
    asked = requests()[:5]
    for number, budget in budgets.items():
        thinking = Thinking(end=forced[-1:], forced=forced, open=True, budget=budget)
        sampling = replace(asked[number].sampling, thinking=thinking)
        asked[number] = replace(asked[number], sampling=sampling)

    def served(engine: Engine) -> dict[str, list[int]]:
        for request in asked:
            engine.add(request)
        return finish(engine, {})

    host = engine_of(folder, platform="cpu", kernel=REFERENCE, threads=1)
    expected = served(host)
    host.close()
    for number, budget in budgets.items():
        assert tuple(expected[f"r{number}"][budget:][:3]) == forced
    engine = engine_of(folder, platform="cuda", graph_capture=True)
    used = replays(engine)
    assert expected == served(engine)
    assert 6 in used
    engine.close()


@pytest.mark.parametrize("level", [1, 2])
def test_what_ran_when_the_engine_slept_goes_on_with_the_same_tokens(
    folder: Path, level: int
) -> None:
    options = {"platform": "cuda", "graph_capture": True, "kv_cache_memory": 1 << 28}
    engine = engine_of(folder, **options)
    for request in requests()[:5]:
        engine.add(request)
    expected = finish(engine, {})
    for request in requests()[:5]:
        engine.add(request)
    found: dict[str, list[int]] = {}
    for _ in range(20):
        take(engine.step(), found)
    before, deltas = torch.cuda.memory_allocated(), list[TokenDelta]()
    state: Any = answer(engine, Sleep(level), deltas)
    take(deltas, found)
    assert state.freed_bytes >= 1 << 28
    assert before - torch.cuda.memory_allocated() >= 1 << 28
    answer(engine, Wake(), deltas)
    assert expected == finish(engine, found)
    engine.close()
