"""`bench serve`: ask, time, and stamp."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from allmetal.bench.load.arrivals import arrivals
from allmetal.bench.load.client import Client, ServerError
from allmetal.bench.load.drive import Run, drive
from allmetal.bench.load.live import Live
from allmetal.bench.load.prompts import make_calls, warmup_calls
from allmetal.bench.load.result import ServingResult
from allmetal.bench.load.settings import LoadSettings
from allmetal.bench.load.words import IdWriter, WordWriter, Writer, words
from allmetal.bench.machine import machine
from allmetal.config import EngineConfig
from allmetal.text.load import load_tokenizer

_SAMPLES = (64, 320)
"""Words of the two prompts by which the server's way of counting is learnt."""


def measure_serving(url: str, settings: LoadSettings, command: Sequence[str]) -> ServingResult:
    """Raises ConfigError for a workload that cannot be, ServerError if nobody answers."""
    return asyncio.run(_measure(url, settings, command))


async def _measure(url: str, settings: LoadSettings, command: Sequence[str]) -> ServingResult:
    async with Client(url, settings) as client:
        plan = await client.get("/v1/platform")
        version = await client.get("/version")
        writer = await _writer(client, settings)
        calls = make_calls(settings, writer)
        times = None
        if settings.open_loop:
            times = arrivals(
                calls,
                rate=settings.rate,
                burstiness=settings.burstiness,
                seed=settings.workload_seed,
            )
            order = sorted(range(len(calls)), key=times.__getitem__)
            calls, times = [calls[i] for i in order], [times[i] for i in order]
        await _warm_up(client, settings, writer)
        around = machine(command)
        run = Run()
        live = Live(len(calls), run)
        try:
            await drive(client, calls, times, limit=settings.limit, run=run, on_end=live)
        finally:
            live.close()
        return ServingResult(
            model=client.model,
            url=client.url,
            settings=settings,
            run=run,
            environment=around,
            plan=plan if isinstance(plan, dict) else None,
            server=_version_of(version),
        )


async def _writer(client: Client, settings: LoadSettings) -> Writer:
    if settings.tokenizer is not None:
        return _id_writer(settings)
    chance = random.Random(f"samples {settings.workload_seed}")
    samples = [words(chance, count) for count in _SAMPLES]
    few, many = [await client.count_prompt(sample) for sample in samples]
    each = (many - few) / (_SAMPLES[1] - _SAMPLES[0])
    if each <= 0:
        raise ServerError(
            f"{client.url} counts {few} tokens in {_SAMPLES[0]} words and {many} in {_SAMPLES[1]}",
            hint="--tokenizer, with the model's folder",
        )
    characters = len(samples[1]) / _SAMPLES[1]
    return WordWriter(fixed=few - each * _SAMPLES[0], each=each, characters=characters)


def _id_writer(settings: LoadSettings) -> IdWriter:
    assert settings.tokenizer is not None
    config = EngineConfig(model=settings.tokenizer, tokenizer=settings.tokenizer)
    tokenizer = load_tokenizer(Path(settings.tokenizer), config)
    as_text = settings.endpoint == "chat"
    return IdWriter.of(tokenizer, as_text=as_text)


async def _warm_up(client: Client, settings: LoadSettings, writer: Writer) -> None:
    """Raises ServerError if every one of them fails: then so would all the others."""
    calls = warmup_calls(settings, writer)
    if not calls:
        return
    run = Run()
    await drive(client, calls, None, limit=settings.limit, run=run)
    errors = [record.error for record in run.records if record.error is not None]
    if len(errors) == len(calls):
        raise client.refuses(errors[0])


def _version_of(answer: Any) -> Mapping[str, object]:
    match answer:
        case {"version": version}:
            return {"version": version}
    return {}
