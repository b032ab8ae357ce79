"""What a front end may ask between two steps: on a real tiny model, through a real process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from allmetal.config import EngineConfig
from allmetal.engine.answers import sequences_of
from allmetal.engine.asks import (
    AbortRequests,
    Ask,
    AskState,
    EngineState,
    Pause,
    ResetPrefixCache,
    Resume,
    Sleep,
    Wake,
)
from allmetal.engine.async_engine import AsyncEngine
from allmetal.errors import RequestError, UnavailableError
from allmetal.request import RequestOutput, SamplingParams, StructuredOutput

PROMPT = "One engine, all metal: a scheduler, a cache of blocks, and kernels for every platform."
LONG = SamplingParams(temperature=0.0, max_tokens=200, ignore_eos=True)


@asynccontextmanager
async def engine_of(model: Path, kind: str | None = None) -> AsyncIterator[AsyncEngine]:
    config = EngineConfig(
        model=str(model), platform="cpu", kv_cache_memory=1 << 23, threads=1, async_scheduling=True
    )
    options = {} if kind is None else {"factory": f"stand_ins:{kind}"}
    engine = await AsyncEngine.start(config, **options)
    try:
        yield engine
    finally:
        await engine.close()


async def last(engine: AsyncEngine, prompt: str = PROMPT, params: SamplingParams = LONG) -> str:
    return [output async for output in engine.generate(prompt, params)][-1].outputs[0].text


async def begun(
    engine: AsyncEngine, count: int = 1, params: SamplingParams = LONG
) -> list[asyncio.Task[RequestOutput]]:
    """Requests that have made their first tokens and go on."""
    first = [asyncio.Event() for _ in range(count)]

    async def run(index: int) -> RequestOutput:
        output = None
        async for output in engine.generate(PROMPT, params, request_id=f"r{index}"):
            if len(output.outputs[0].token_ids) > 3:
                first[index].set()
        assert output is not None
        return output

    tasks = [asyncio.create_task(run(index)) for index in range(count)]
    await asyncio.gather(*(event.wait() for event in first))
    return tasks


async def settled(engine: AsyncEngine, ready: Callable[[EngineState], bool]) -> EngineState:
    async with asyncio.timeout(20):
        while not ready(state := await engine.call(AskState())):
            await asyncio.sleep(0.01)
    return state


def test_a_pause_lets_what_runs_go_on_and_holds_what_comes(tiny_llama: Path) -> None:
    async def main() -> None:
        async with engine_of(tiny_llama) as engine:
            expected = await last(engine)
            [running] = await begun(engine)
            assert (await engine.call(Pause())).paused
            held = asyncio.create_task(last(engine))

            assert expected == (await running).outputs[0].text
            state = await settled(engine, lambda s: s.num_waiting == 1 and s.num_running == 0)
            assert state.paused
            cpu = psutil.Process(engine.pid).cpu_times().user
            await asyncio.sleep(0.3)
            assert not held.done()
            assert psutil.Process(engine.pid).cpu_times().user - cpu < 0.1  # it does not spin

            assert not (await engine.call(Resume())).paused
            assert expected == await held

    asyncio.run(main())


HELD = replace(LONG, structured=StructuredOutput(regex="([a-z]{1,9} ){60}"), ignore_eos=False)


@pytest.mark.parametrize("params", [LONG, HELD], ids=["free", "held to a form"])
def test_sleep_gives_memory_back_and_what_ran_goes_on_with_the_same_tokens(
    tiny_llama: Path, params: SamplingParams
) -> None:
    async def main() -> None:
        async with engine_of(tiny_llama) as engine:
            expected = await last(engine, PROMPT, params)
            for level in (1, 2):
                tasks = await begun(engine, 2, params)
                asleep = await engine.call(Sleep(level))
                assert (level, True, 0, 2) == (
                    asleep.sleep_level,
                    asleep.paused,
                    asleep.num_running,
                    asleep.num_waiting,
                )
                await asyncio.sleep(0.1)
                assert not any(task.done() for task in tasks)
                with pytest.raises(RequestError, match="sleeps"):
                    await engine.call(Resume())
                assert level == (await engine.call(Sleep(1))).sleep_level  # never deeper than it is

                awake = await engine.call(Wake())
                assert (0, False) == (awake.sleep_level, awake.paused)
                texts = [(await task).outputs[0].text for task in tasks]
                assert [expected] * 2 == texts
            stats = await engine.stats()
            assert 0 == stats.kv_usage

    asyncio.run(main())


@pytest.mark.parametrize("level", [0, 3, -1])
def test_other_levels_of_sleep_are_refused(tiny_llama: Path, level: int) -> None:
    async def main() -> None:
        async with engine_of(tiny_llama, "counting") as engine:
            with pytest.raises(RequestError, match=f"no sleep level {level}"):
                await engine.call(Sleep(level))

    asyncio.run(main())


def test_an_executor_that_cannot_give_memory_back_is_a_refusal_and_work_goes_on(
    tiny_llama: Path,
) -> None:
    async def main() -> None:
        async with engine_of(tiny_llama, "counting") as engine:
            with pytest.raises(UnavailableError, match="NullExecutor cannot give its memory back"):
                await engine.call(Sleep(1))
            assert not (await engine.call(AskState())).paused
            assert "CDEFGHIJ" == await last(engine, "x", SamplingParams(max_tokens=8))

    asyncio.run(main())


def test_after_a_reset_no_prefix_is_found(tiny_llama: Path) -> None:
    async def main() -> list[int]:
        async with engine_of(tiny_llama) as engine:
            cached = []
            asks: list[Ask[EngineState] | None] = [None, None, ResetPrefixCache(), None]
            for ask in asks:
                if ask is not None:
                    await engine.call(ask)
                short = SamplingParams(max_tokens=2)
                outputs = [output async for output in engine.generate(PROMPT * 8, short)]
                cached.append(outputs[-1].num_cached_tokens)
            return cached

    first, again, after_reset, later = asyncio.run(main())
    assert first == after_reset == 0
    assert again == later > 0


def test_abort_ends_one_request_or_all_and_says_how_many(tiny_llama: Path) -> None:
    async def main() -> None:
        async with engine_of(tiny_llama, "slow") as engine:
            tasks = await begun(engine, 3)

            async def reasons(asked: Awaitable[int], ended: list[int]) -> list[str | None]:
                assert await asked == len(ended)
                outputs = [await tasks[index] for index in ended]
                return [output.outputs[0].finish_reason for output in outputs]

            assert 0 == await engine.call(AbortRequests("r"))
            assert ["abort"] == await reasons(engine.call(AbortRequests("r1")), [1])
            assert ["abort"] * 2 == await reasons(engine.call(AbortRequests(None)), [0, 2])

    asyncio.run(main())


def test_a_requests_sequences_are_told_from_anothers() -> None:
    sequences = ["a", "ab", "a/1", "a-0", "a-0/1", "b-a"]

    assert ["a", "a/1", "a-0", "a-0/1"] == sequences_of("a", sequences)
    assert sequences == sequences_of(None, sequences)
