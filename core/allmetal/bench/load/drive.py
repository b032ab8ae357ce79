"""Make requests at their times, and watch that the client itself keeps up."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field

from allmetal.bench.load.client import Client
from allmetal.bench.load.records import Call, Record

_TICK_S = 0.01


@dataclass(slots=True, kw_only=True)
class Run:
    """All that was seen.  `begin` and `end` are on the clock of the records."""

    records: list[Record] = field(default_factory=list)
    begin: float = 0.0
    end: float = 0.0
    lag: list[float] = field(default_factory=list)
    """Seconds by which the client's own event loop was late, every 10 ms."""
    cpu_s: float = 0.0
    """Processor time of the client's process."""

    @property
    def seconds(self) -> float:
        return self.end - self.begin


async def drive(
    client: Client,
    calls: Sequence[Call],
    times: Sequence[float] | None,
    *,
    limit: int | None,
    run: Run,
    on_end: Callable[[Record], None] = lambda _: None,
) -> None:
    """Fill `run`.  `times`: seconds after the beginning, rising; None is a closed loop of `limit`.

    In an open loop a request that must wait for one of `limit` places counts from its own time.
    """
    places = asyncio.Semaphore(limit or len(calls))
    async with _watched(run):

        async def one(call: Call, at: float | None) -> None:
            try:
                due = time.perf_counter() if at is None else run.begin + at
                record = Record(scheduled=due, num_asked=call.output_len)
                run.records.append(record)
                if at is not None:
                    await places.acquire()
                await client.ask(call, record)
                on_end(record)
            finally:
                places.release()

        async with asyncio.TaskGroup() as tasks:
            for number, call in enumerate(calls):
                if times is None:
                    await places.acquire()
                    tasks.create_task(one(call, None))
                    continue
                if (wait := run.begin + times[number] - time.perf_counter()) > 0:
                    await asyncio.sleep(wait)
                tasks.create_task(one(call, times[number]))


@contextlib.asynccontextmanager
async def _watched(run: Run) -> AsyncIterator[None]:
    async def watch() -> None:
        while True:
            due = time.perf_counter() + _TICK_S
            await asyncio.sleep(_TICK_S)
            run.lag.append(max(0.0, time.perf_counter() - due))

    watching = asyncio.create_task(watch())
    cpu = time.process_time()
    run.begin = time.perf_counter()
    try:
        yield
    finally:
        run.end = time.perf_counter()
        run.cpu_s = time.process_time() - cpu
        watching.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watching
