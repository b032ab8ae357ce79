"""An engine that dies is started again as often as told, and not more often."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path

import psutil
import pytest

from allmetal.config import EngineConfig
from allmetal.engine import owned
from allmetal.engine.async_engine import AsyncEngine
from allmetal.errors import EngineDeadError
from allmetal.request import RequestOutput, SamplingParams


async def finish(engine: AsyncEngine, max_tokens: int = 5) -> RequestOutput:
    params = SamplingParams(max_tokens=max_tokens)
    return [output async for output in engine.generate("abc", params)][-1]


async def is_up(engine: AsyncEngine, seconds: float = 20.0) -> None:
    begin = time.perf_counter()
    while engine.error is not None:
        assert time.perf_counter() - begin < seconds, "it did not come back"
        await asyncio.sleep(0.02)


def test_requests_of_the_old_engine_fail_and_those_of_the_new_one_are_served(
    tiny_llama: Path,
) -> None:
    async def main() -> None:
        config = EngineConfig(model=str(tiny_llama))
        engine = await AsyncEngine.start(config, factory="stand_ins:slow", restart=2)
        old = engine.pid
        open_ones = [asyncio.create_task(finish(engine, 400)) for _ in range(3)]
        await asyncio.sleep(0.2)
        os.kill(old, signal.SIGKILL)
        for error in await asyncio.gather(*open_ones, return_exceptions=True):
            assert isinstance(error, EngineDeadError)
            assert "it is being started again" in error.message
        with pytest.raises(EngineDeadError, match="started again"):
            await engine.stats()

        await is_up(engine)
        assert engine.pid != old
        assert (await finish(engine)).finished
        stats = await engine.stats()
        assert (stats.num_running, stats.num_waiting, stats.kv_usage) == (0, 0, 0)
        assert not engine.gone_for_good.is_set()
        await engine.close()
        assert not psutil.pid_exists(engine.pid)

    asyncio.run(main())


def test_one_that_cannot_be_loaded_again_is_given_up_with_the_reason(
    tiny_llama: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(owned, "_WAITS_S", (0.0, 0.2, 0.4))

    async def main() -> float:
        config = EngineConfig(model=str(tiny_llama), revision=str(tmp_path / "loaded"))
        engine = await AsyncEngine.start(config, factory="stand_ins:loads_once", restart=4)
        begin = time.perf_counter()
        os.kill(engine.pid, signal.SIGKILL)
        await asyncio.wait_for(engine.gone_for_good.wait(), 60)
        took = time.perf_counter() - begin
        assert engine.error is not None
        assert engine.error.message == "the engine failed: the checkpoint is gone"
        await engine.close()
        return took

    assert asyncio.run(main()) > 0.2 + 0.4 + 0.4
    told = [line.rpartition("; ")[2] for line in caplog.messages]
    assert told == [f"starting it again ({number} of 4)" for number in (1, 2, 3, 4)]


def test_an_engine_that_is_being_started_again_can_be_closed(tiny_llama: Path) -> None:
    async def main() -> None:
        config = EngineConfig(model=str(tiny_llama))
        engine = await AsyncEngine.start(config, factory="stand_ins:slow", restart=5)
        os.kill(engine.pid, signal.SIGKILL)
        while engine.error is None:
            await asyncio.sleep(0.01)
        begin = time.perf_counter()
        await engine.close()
        assert time.perf_counter() - begin < 3

    before = {child.pid for child in psutil.Process().children()}
    asyncio.run(main())
    assert {child.pid for child in psutil.Process().children()} <= before
