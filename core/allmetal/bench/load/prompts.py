"""The requests of each kind of workload."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from allmetal.bench.load.records import Call, PromptText
from allmetal.bench.load.settings import LoadSettings
from allmetal.bench.load.words import Writer
from allmetal.errors import ConfigError

_BLOCK = 512
"""Tokens that a `hash_id` of a trace stands for, in the traces that were published."""


def make_calls(settings: LoadSettings, writer: Writer) -> list[Call]:
    """Raises ConfigError if a file cannot be read, is not what it should be, or holds nothing."""
    makers = {"random": _random, "prefix": _prefix, "sharegpt": _sharegpt, "trace": _trace}
    calls = [call for call, _ in zip(makers[settings.dataset](settings, writer),
             range(settings.requests), strict=False)]  # fmt: skip
    if not calls:
        raise ConfigError(f"{settings.file} holds no request that can be made")
    return calls


def warmup_calls(settings: LoadSettings, writer: Writer) -> list[Call]:
    """Like the others in length, and not among them."""
    chance = random.Random(f"warmup {settings.workload_seed}")
    lengths = (settings.input_len, min(settings.output_len, 32))
    return [
        Call(prompt=writer.write(chance, lengths[0]), output_len=lengths[1])
        for _ in range(settings.warmup)
    ]


@dataclass(frozen=True, slots=True)
class _Lengths:
    chance: random.Random
    spread: float

    def near(self, length: int) -> int:
        least, most = length * (1 - self.spread), length * (1 + self.spread)
        return max(1, round(self.chance.uniform(least, most)))


def _random(settings: LoadSettings, writer: Writer) -> Iterator[Call]:
    chance = random.Random(f"random {settings.workload_seed}")
    lengths = _Lengths(chance, settings.length_spread)
    while True:
        yield Call(
            prompt=writer.write(chance, lengths.near(settings.input_len)),
            output_len=lengths.near(settings.output_len),
        )


def _prefix(settings: LoadSettings, writer: Writer) -> Iterator[Call]:
    chance = random.Random(f"prefix {settings.workload_seed}")
    beginnings = [writer.write(chance, settings.prefix_len) for _ in range(settings.prefixes)]
    for call in _random(settings, writer):
        prompt = writer.join(chance.choice(beginnings), call.prompt)
        yield Call(prompt=prompt, output_len=call.output_len)


def _sharegpt(settings: LoadSettings, writer: Writer) -> Iterator[Call]:
    """The first question of each conversation, and as many tokens as its answer has."""
    entries = _read_json(settings)
    if not isinstance(entries, list):
        raise ConfigError(f"{settings.file} is no list of conversations")
    usable = [pair for entry in entries if (pair := _exchange(entry)) is not None]
    random.Random(f"sharegpt {settings.workload_seed}").shuffle(usable)
    for question, answer in usable:
        yield Call(prompt=question, output_len=writer.count(answer))


def _exchange(entry: Any) -> tuple[str, str] | None:
    match entry:
        case {"conversations": [{"value": str(question)}, {"value": str(answer)}, *_]}:
            return (question, answer) if question and answer else None
    return None


def _trace(settings: LoadSettings, writer: Writer) -> Iterator[Call]:
    """Lines of JSON: `timestamp`, and `prompt` or `input_length`, with `output_length`.

    `hash_ids` name the prompt's blocks of 512 tokens: equal ids are equal blocks, so a trace
    keeps what its prompts had in common.
    """
    unit = {"s": 1.0, "ms": 1e-3}[settings.trace_unit]
    first: float | None = None
    for number, line in enumerate(_lines(settings), 1):
        try:
            entry = json.loads(line)
            at = float(entry["timestamp"]) * unit / settings.speedup
            prompt = _trace_prompt(entry, settings, writer, number)
            output_len = int(entry.get("output_length", settings.output_len))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ConfigError(
                f"{settings.file}, line {number} is no request of a trace: {error!r}",
                hint='{"timestamp": 120, "input_length": 512, "output_length": 64}',
            ) from None
        first = at if first is None else first
        yield Call(prompt=prompt, output_len=max(1, output_len), at=max(0.0, at - first))


def _trace_prompt(
    entry: Mapping[str, Any], settings: LoadSettings, writer: Writer, number: int
) -> PromptText:
    if "prompt" in entry:
        return str(entry["prompt"])
    length, seed = int(entry["input_length"]), settings.workload_seed
    prompt: PromptText | None = None
    for block in entry.get("hash_ids", ()):
        if length <= 0:
            break
        part = writer.write(random.Random(f"block {seed} {block}"), min(length, _BLOCK))
        prompt = part if prompt is None else writer.join(prompt, part)
        length -= _BLOCK
    if length > 0:
        rest = writer.write(random.Random(f"line {seed} {number}"), length)
        prompt = rest if prompt is None else writer.join(prompt, rest)
    if prompt is None:
        raise ValueError("input_length is 0")
    return prompt


def _read_json(settings: LoadSettings) -> Any:
    try:
        return json.loads(_text(settings))
    except ValueError as error:
        raise ConfigError(f"{settings.file} is no JSON: {error}") from None


def _lines(settings: LoadSettings) -> list[str]:
    return [line for line in _text(settings).splitlines() if line.strip()]


def _text(settings: LoadSettings) -> str:
    assert settings.file is not None
    try:
        return Path(settings.file).expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{settings.file} cannot be read: {error}") from None
