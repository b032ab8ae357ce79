"""From the start of a server's process to its first token, and the memory that takes."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from allmetal.bench.load.client import Client, ServerError
from allmetal.bench.load.hosted import Hosted, hosted
from allmetal.bench.load.records import Call, Record
from allmetal.bench.load.settings import LoadSettings
from allmetal.bench.machine import machine
from allmetal.bench.report import Figure, Report
from allmetal.errors import ConfigError

_PROC = Path("/proc")
_PEAK = re.compile(r"^VmHWM:\s+(\d+) kB", re.MULTILINE)
_PARENT = re.compile(r"^PPid:\s+(\d+)", re.MULTILINE)


def measure_startup(serve: Sequence[str], *, repetitions: int, command: Sequence[str]) -> Report:
    """`serve`: the words after `allmetal serve`.  Raises ServerError if it does not start."""
    if repetitions < 1:
        raise ConfigError(f"repetitions must be at least 1, not {repetitions}")
    around = machine(command)
    listening, first, memory = [], [], []
    plan: Mapping[str, Any] = {}
    for _ in range(repetitions):
        begin = time.perf_counter()
        with hosted(serve) as running:
            listening.append(running.seconds)
            plan = asyncio.run(_first_token(running))
            first.append(time.perf_counter() - begin)
            if peak := _peak_bytes(running.process.pid):
                memory.append(peak / 2**20)
    figures = [
        Figure(name="listening", unit="s", values=tuple(listening)),
        Figure(name="first_token", unit="s", values=tuple(first)),
    ]
    if memory:
        figures.append(Figure(name="peak_memory", unit="MiB", values=tuple(memory)))
    return Report(
        benchmark="startup",
        model=serve[0],
        settings={"options": " ".join(serve[1:]), "repetitions": repetitions},
        figures=figures,
        environment=around,
        plan=plan,
        title=f"{serve[0]} on {plan.get('platform')}: {plan.get('device', {}).get('name')}",
    )


async def _first_token(running: Hosted) -> Mapping[str, Any]:
    async with Client(running.url, LoadSettings()) as client:
        record = Record(scheduled=time.perf_counter())
        await client.ask(Call(prompt="Hello", output_len=1), record)
        if record.error is not None:
            raise ServerError(f"the first request failed: {record.error}")
        plan: Mapping[str, Any] = await client.get("/v1/platform") or {}
        return plan


def _peak_bytes(pid: int) -> int:
    """Most resident memory of a process and its children, added up: what they share counts
    twice.  0 where the system does not tell."""
    total = 0
    for status in _PROC.glob("[0-9]*/status"):
        try:
            text = status.read_text()
        except OSError:  # it ended
            continue
        parent, peak = _PARENT.search(text), _PEAK.search(text)
        if peak and parent and pid in (int(parent[1]), int(status.parent.name)):
            total += int(peak[1]) * 1024
    return total
