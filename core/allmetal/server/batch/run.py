"""A batch from its first line to its last."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import BinaryIO

import msgspec
from starlette.types import ASGIApp

from allmetal.config import EngineConfig, ServerConfig
from allmetal.engine.async_engine import AsyncEngine
from allmetal.server.app import create_app
from allmetal.server.batch.asgi import post
from allmetal.server.batch.lines import BadLine, Done, Line, answer, read_line, refusal

# Enough that the engine never waits for a prompt to be tokenised.
_AHEAD = 2


@dataclass(slots=True)
class Counts:
    """Lines by what became of them, and tokens."""

    answered: int = 0
    failed: int = 0
    skipped: int = 0
    tokens: int = 0


class _Usage(msgspec.Struct):
    completion_tokens: int = 0
    output_tokens: int = 0


class _Body(msgspec.Struct):
    usage: _Usage | None = None


async def run_batch(
    lines: Iterator[tuple[int, bytes]],
    output: BinaryIO,
    done: Done,
    engine_config: EngineConfig,
    config: ServerConfig,
    *,
    progress: Callable[[Counts], None],
) -> Counts:
    """Answer each line that is not `done`; answers are written as they come, whole lines at once.

    Raises what loading raises, and EngineDeadError if the engine ends: what was written stays.
    """
    engine = await AsyncEngine.start(engine_config)
    try:
        run = _Run(engine, create_app(engine, config), output, done, progress)
        await run.all(lines)
        return run.counts
    finally:
        await engine.close()


class _Run:
    def __init__(
        self,
        engine: AsyncEngine,
        app: ASGIApp,
        output: BinaryIO,
        done: Done,
        progress: Callable[[Counts], None],
    ) -> None:
        self.counts = Counts()
        self._engine, self._app, self._output = engine, app, output
        self._done, self._progress = done, progress
        self._seen: set[str] = set()

    async def all(self, lines: Iterator[tuple[int, bytes]]) -> None:
        room = asyncio.Semaphore(_AHEAD * self._engine.plan.max_num_seqs)

        async def one(line: Line) -> None:
            try:
                await self._answer(line)
            finally:
                room.release()

        async with asyncio.TaskGroup() as tasks:
            for number, raw in lines:
                line = self._checked(read_line(number, raw))
                if line in self._done:
                    self.counts.skipped += 1
                    self._progress(self.counts)
                elif isinstance(line, BadLine):
                    self._write(refusal(line), failed=True)
                else:
                    await room.acquire()
                    tasks.create_task(one(line))

    def _checked(self, line: Line | BadLine) -> Line | BadLine:
        """An id names one line: who reads the answers could not tell two of them apart."""
        if isinstance(line, BadLine):
            return line
        if line.custom_id in self._seen:
            reason = f"custom_id {line.custom_id!r} is that of an earlier line"
            return BadLine(number=line.number, custom_id=None, reason=reason)
        self._seen.add(line.custom_id)
        return line

    async def _answer(self, line: Line) -> None:
        reply = await post(self._app, line.url, msgspec.json.encode(line.body))
        if self._engine.error is not None:  # an answer for want of an engine is none to keep
            raise self._engine.error
        self._count_tokens(reply.body)
        self._write(answer(line, reply), failed=reply.status >= 400)

    def _count_tokens(self, body: bytes) -> None:
        try:
            usage = msgspec.json.decode(body, type=_Body).usage
        except msgspec.DecodeError:
            return
        if usage is not None:
            self.counts.tokens += usage.completion_tokens or usage.output_tokens

    def _write(self, line: bytes, *, failed: bool) -> None:
        self._output.write(line)
        self._output.flush()
        self.counts.answered += not failed
        self.counts.failed += failed
        self._progress(self.counts)
