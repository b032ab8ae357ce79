"""The engine's process and its front end, with engines that compute nothing."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest

from allmetal.config import EngineConfig
from allmetal.engine.async_engine import AsyncEngine
from allmetal.errors import (
    AllmetalError,
    CheckpointError,
    EngineDeadError,
    NoKernelError,
    RequestError,
)
from allmetal.request import RequestOutput, SamplingParams

TRACEBACK = "its traceback is on standard error"


@contextlib.asynccontextmanager
async def started(model: Path, kind: str) -> AsyncIterator[AsyncEngine]:
    config = EngineConfig(model=str(model), kernel={"attention": "x"})
    engine = await AsyncEngine.start(config, factory=f"stand_ins:{kind}")
    try:
        yield engine
    finally:
        await engine.close()


async def last(engine: AsyncEngine, prompt: str | list[int], **sampling: object) -> RequestOutput:
    params = SamplingParams(**{"max_tokens": 8, **sampling})  # type: ignore[arg-type]
    return [output async for output in engine.generate(prompt, params)][-1]


async def running(engine: AsyncEngine) -> int:
    stats = await engine.stats()
    return stats.num_running + stats.num_waiting


async def until(condition: object, seconds: float = 5.0) -> float:
    """Wait for an async condition; returns how long it took."""
    begin = time.perf_counter()
    while not await condition():  # type: ignore[operator]
        assert time.perf_counter() - begin < seconds, "it did not happen in time"
        await asyncio.sleep(0.01)
    return time.perf_counter() - begin


def gone(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def wait_until_gone(pid: int, seconds: float) -> None:
    begin = time.perf_counter()
    while not gone(pid):
        assert time.perf_counter() - begin < seconds, "the process is still there"
        time.sleep(0.01)


def test_many_requests_at_once_each_get_all_their_tokens_in_order(tiny_llama: Path) -> None:
    async def main() -> list[RequestOutput]:
        async with started(tiny_llama, "counting") as engine:
            prompts = [[5] * (1 + i % 7) for i in range(40)]
            return await asyncio.gather(*(last(engine, p, max_tokens=30) for p in prompts))

    for number, output in enumerate(asyncio.run(main())):
        start = 1 + number % 7
        expected = [37 + (start + i) % 20 for i in range(30)]
        assert expected == output.outputs[0].token_ids
        assert output.outputs[0].finish_reason == "length"
        assert output.finished


def test_outputs_grow_and_the_last_one_is_whole(tiny_llama: Path) -> None:
    async def main() -> list[tuple[str, bool]]:
        async with started(tiny_llama, "slow") as engine:
            stream = engine.generate("hello", SamplingParams(max_tokens=6))
            return [(o.outputs[0].text, o.finished) async for o in stream]

    seen = asyncio.run(main())

    assert seen[-1] == (seen[-1][0], True)
    assert len(seen[-1][0]) == 6
    assert len(seen) > 3  # it came bit by bit
    assert [text for text, _ in seen] == sorted(text for text, _ in seen)


def test_a_reader_who_takes_his_time_still_sees_the_end(tiny_llama: Path) -> None:
    """The output he holds is finished behind his back; it must come once more."""

    async def main() -> bool:
        async with started(tiny_llama, "counting") as engine:
            seen = False
            async for output in engine.generate("x", SamplingParams(max_tokens=30)):
                seen = output.finished
                while not output.finished:
                    await asyncio.sleep(0.01)
            return seen

    assert asyncio.run(main())


def test_an_id_that_another_request_made_for_its_choices_is_refused(tiny_llama: Path) -> None:
    async def main() -> None:
        async with started(tiny_llama, "counting") as engine:
            several = engine.generate("x", SamplingParams(n=2, max_tokens=2000), request_id="a")
            await anext(several)
            with pytest.raises(RequestError, match="'a/0' is under way"):
                await anext(engine.generate("y", request_id="a/0"))
            assert [o async for o in several][-1].finished

    asyncio.run(main())


def test_n_completions_come_as_one_output(tiny_llama: Path) -> None:
    async def main() -> RequestOutput:
        async with started(tiny_llama, "counting") as engine:
            return await last(engine, "abc", n=3)

    output = asyncio.run(main())

    assert [0, 1, 2] == [choice.index for choice in output.outputs]
    assert all(len(choice.token_ids) == 8 for choice in output.outputs)


def test_a_stop_string_ends_the_request_in_the_engine_too(tiny_llama: Path) -> None:
    async def main() -> None:
        async with started(tiny_llama, "slow") as engine:
            text = (await last(engine, "abc")).outputs[0].text
            choice = (await last(engine, "abc", max_tokens=400, stop=(text[3:6],))).outputs[0]

            assert (text[:3], "stop", text[3:6]) == (
                choice.text,
                choice.finish_reason,
                choice.stop_reason,
            )
            assert await running(engine) == 0
            assert (await engine.stats()).output_tokens < 20

    asyncio.run(main())


def test_a_request_that_is_refused_raises_and_the_engine_goes_on(tiny_llama: Path) -> None:
    async def main() -> None:
        async with started(tiny_llama, "counting") as engine:
            with pytest.raises(RequestError, match="vocabulary") as refused:
                await last(engine, [10_000])
            assert refused.value.message
            with pytest.raises(RequestError, match="limit of 512"):
                await last(engine, [5] * 600, n=2)
            assert (await last(engine, "abc")).finished
            assert await running(engine) == 0

    asyncio.run(main())


def test_two_requests_of_one_id_are_refused(tiny_llama: Path) -> None:
    async def main() -> None:
        async with started(tiny_llama, "slow") as engine:
            first = engine.generate("a", SamplingParams(max_tokens=50), request_id="x")
            await anext(first)
            with pytest.raises(RequestError, match="under way"):
                await anext(engine.generate("a", request_id="x"))
            await first.aclose()

    asyncio.run(main())


def test_closing_a_generator_early_aborts_the_request(tiny_llama: Path) -> None:
    async def main() -> None:
        async with started(tiny_llama, "slow") as engine:
            stream = engine.generate("abc", SamplingParams(max_tokens=400))
            await anext(stream)
            assert await running(engine) == 1
            await stream.aclose()
            assert await running(engine) == 0  # messages keep their order

    asyncio.run(main())


def test_cancelling_the_task_that_waits_aborts_the_request(tiny_llama: Path) -> None:
    async def main() -> None:
        async with started(tiny_llama, "slow") as engine:
            task = asyncio.create_task(last(engine, "abc", max_tokens=400, n=3))

            async def started_running() -> bool:
                return await running(engine) == 3

            await until(started_running)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert await running(engine) == 0

    asyncio.run(main())


def test_abort_ends_a_stream_with_that_reason(tiny_llama: Path) -> None:
    async def main() -> RequestOutput:
        async with started(tiny_llama, "slow") as engine:
            stream = engine.generate("abc", SamplingParams(max_tokens=400, n=2), request_id="r")
            await anext(stream)
            await engine.abort("r")
            await engine.abort("unknown")
            return [output async for output in stream][-1]

    output = asyncio.run(main())

    assert output.finished
    assert {choice.finish_reason for choice in output.outputs} == {"abort"}


def test_the_plan_and_the_numbers_arrive(tiny_llama: Path) -> None:
    async def main() -> None:
        async with started(tiny_llama, "counting") as engine:
            assert engine.plan.platform == "null"
            assert engine.plan.device.traits == {"kind": "stand-in"}
            assert engine.ready.max_model_len == 512
            assert engine.ready.vocab_size == 400
            await last(engine, [5] * 10)
            stats = await engine.stats()
            assert (10, 8) == (stats.prompt_tokens, stats.output_tokens)

    asyncio.run(main())


@pytest.mark.parametrize(
    ("kind", "error", "message", "hint"),
    [
        ("broken_checkpoint", CheckpointError, "shard 2 is cut short", "download it again"),
        ("no_kernel", NoKernelError, "no attention kernel accepts", "narrow it"),
        ("bug_while_loading", EngineDeadError, "IndexError: list index out of range", TRACEBACK),
        ("dies_while_loading", EngineDeadError, "it exited with code 7", None),
        ("there_is_none", EngineDeadError, "AttributeError", TRACEBACK),
    ],
)
def test_an_error_while_loading_is_raised_as_what_it_is(
    tiny_llama: Path, kind: str, error: type[AllmetalError], message: str, hint: str | None
) -> None:
    async def main() -> None:
        async with started(tiny_llama, kind):
            pass

    with pytest.raises(error, match=message) as raised:
        asyncio.run(main())

    assert type(raised.value) is error
    assert hint == raised.value.hint
    if isinstance(raised.value, NoKernelError):
        assert raised.value.refused == (("fast", "too wide"),)


def children() -> set[int]:
    """multiprocessing's own helper processes among them, which outlive the test that needed one."""
    return {child.pid for child in psutil.Process().children()}


def test_a_model_without_a_tokenizer_ends_the_process_too(tmp_path: Path) -> None:
    before = children()

    async def main() -> None:
        async with started(tmp_path / "nothing", "never_ready"):
            pass

    with pytest.raises(CheckpointError):
        asyncio.run(main())

    assert children() <= before


def test_start_can_be_given_up(tiny_llama: Path) -> None:
    before = children()

    async def main() -> None:
        async with asyncio.timeout(1.0), started(tiny_llama, "never_ready"):
            pass

    begin = time.perf_counter()
    with pytest.raises(TimeoutError):
        asyncio.run(main())

    assert time.perf_counter() - begin < 4
    assert children() <= before


def test_a_killed_engine_is_noticed_within_a_second_by_every_request(tiny_llama: Path) -> None:
    async def main() -> None:
        async with started(tiny_llama, "slow") as engine:
            tasks = [asyncio.create_task(last(engine, "abc", max_tokens=400)) for _ in range(5)]

            async def all_run() -> bool:
                return await running(engine) == 5

            await until(all_run)
            os.kill(engine.pid, signal.SIGKILL)
            begin = time.perf_counter()
            results = await asyncio.gather(*tasks, return_exceptions=True)
            assert time.perf_counter() - begin < 1
            for result in results:
                assert isinstance(result, EngineDeadError)
                assert "SIGKILL" in result.message
            with pytest.raises(EngineDeadError):
                await last(engine, "more")
            with pytest.raises(EngineDeadError):
                await engine.stats()
            assert engine.error is not None

    asyncio.run(main())


def test_a_crash_of_the_loop_ends_requests_and_leaves_its_traceback(
    tiny_llama: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    async def main() -> None:
        async with started(tiny_llama, "crashes") as engine:
            with pytest.raises(EngineDeadError) as dead:
                await last(engine, "abc", max_tokens=50)
            assert dead.value.message == "the engine failed: ZeroDivisionError: a bug in the loop"

    asyncio.run(main())

    assert "stand_ins.py" in capfd.readouterr().err


def test_close_ends_open_requests_and_leaves_nothing(
    tiny_llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    async def main() -> None:
        async with started(tiny_llama, "slow") as engine:
            task = asyncio.create_task(last(engine, "abc", max_tokens=400))
            await asyncio.sleep(0.1)
            begin = time.perf_counter()
            await engine.close()
            assert time.perf_counter() - begin < 2
            with pytest.raises(EngineDeadError, match="closed"):
                await task
            await engine.close()
            assert gone(engine.pid)

    asyncio.run(main())

    assert list(tmp_path.iterdir()) == []


def test_the_meeting_place_is_private_and_gone_once_both_are_there(
    tiny_llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    modes = []
    make = tempfile.mkdtemp

    def mkdtemp(*args: str | None, **kwargs: str | None) -> str:
        folder = make(*args, **kwargs)  # type: ignore[type-var]
        modes.append(os.stat(folder).st_mode & 0o777)
        return folder  # type: ignore[return-value]

    monkeypatch.setattr(tempfile, "mkdtemp", mkdtemp)

    async def main() -> None:
        async with started(tiny_llama, "counting") as engine:
            assert list(tmp_path.iterdir()) == []
            assert (await last(engine, "abc")).finished

    asyncio.run(main())

    assert modes == [0o700]


def test_without_sockets_in_files_the_loopback_interface_does(
    tiny_llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = tmp_path / ("d" * 100)
    deep.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(deep))

    async def main() -> None:
        async with started(tiny_llama, "counting") as engine:
            assert (await last(engine, "abc")).finished

    asyncio.run(main())

    assert list(deep.iterdir()) == []


def test_close_lets_open_requests_end_when_told_to(tiny_llama: Path) -> None:
    async def main() -> RequestOutput:
        async with started(tiny_llama, "slow") as engine:
            task = asyncio.create_task(last(engine, "abc", max_tokens=20))
            await asyncio.sleep(0.1)
            await engine.close(drain_s=10)
            return await task

    assert len(asyncio.run(main()).outputs[0].token_ids) == 20


def test_an_engine_that_hangs_is_ended_in_bounded_time(
    tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("allmetal.engine.life._STOP_GRACE_S", 0.5)

    async def main() -> None:
        async with started(tiny_llama, "hangs") as engine:
            task = asyncio.create_task(last(engine, "abc"))
            await asyncio.sleep(0.2)
            begin = time.perf_counter()
            await engine.close()
            assert time.perf_counter() - begin < 2
            assert gone(engine.pid)
            with pytest.raises(EngineDeadError):
                await task

    asyncio.run(main())


@pytest.mark.parametrize("kind", ["slow", "hangs", "never_ready"])
def test_the_engine_does_not_outlive_a_killed_parent(
    tiny_llama: Path, tmp_path: Path, kind: str
) -> None:
    parent = f"""
import asyncio, sys, tempfile
sys.path[:] = {sys.path!r}
tempfile.tempdir = {str(tmp_path)!r}
from allmetal.config import EngineConfig
from allmetal.engine.async_engine import AsyncEngine
from allmetal.engine.owned import OwnedEngine
from allmetal.request import SamplingParams

async def main():
    config = EngineConfig(model={str(tiny_llama)!r})
    link = OwnedEngine(config, factory="stand_ins:{kind}")
    print(link.pid, flush=True)
    make = await AsyncEngine.join(config, link)
    async for _ in make.generate("abc", SamplingParams(max_tokens=500)):
        print("token", flush=True)

asyncio.run(main())
"""
    process = subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    child = int(process.stdout.readline())
    if kind == "slow":
        assert process.stdout.readline() == "token\n"
    else:
        time.sleep(1.0)
    assert not gone(child)

    process.kill()
    process.wait()

    wait_until_gone(child, seconds=2)
    assert list(tmp_path.iterdir()) == []
