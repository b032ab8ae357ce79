"""Run requests through an engine and note when each token came.

Text is left out: what is timed is the engine, from token ids to token ids.
"""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from allmetal.engine.engine import Engine
from allmetal.errors import AllmetalError, ConfigError
from allmetal.request import Request, SamplingParams


class BenchmarkError(AllmetalError):
    """A measurement is not what it claims to be, so there are no figures."""


@dataclass(slots=True, kw_only=True)
class Timeline:
    """Seconds on one clock: when a request was added and when each of its tokens came."""

    added: float
    tokens: list[float] = field(default_factory=list)

    @property
    def ttft(self) -> float:
        return self.tokens[0] - self.added

    @property
    def gaps(self) -> list[float]:
        """Between each token and the next."""
        return [b - a for a, b in zip(self.tokens, self.tokens[1:], strict=False)]


class Workload:
    """Makes requests of random token ids, no two of them alike, that run to their full length."""

    def __init__(self, vocab_size: int, *, input_len: int, output_len: int, seed: int) -> None:
        self._random = random.Random(seed)
        self._vocab_size = vocab_size
        self._input_len = input_len
        self._sampling = SamplingParams(temperature=0.0, max_tokens=output_len, ignore_eos=True)
        self._num_made = 0

    def take(self, count: int) -> list[Request]:
        return [self._one() for _ in range(count)]

    def _one(self) -> Request:
        self._num_made += 1
        return Request(
            request_id=f"bench-{self._num_made}",
            prompt_token_ids=self._random.choices(range(self._vocab_size), k=self._input_len),
            sampling=self._sampling,
        )


def drive(engine: Engine, requests: Sequence[Request], *, concurrency: int) -> list[Timeline]:
    """Keep `concurrency` requests open until all have ended.

    Raises BenchmarkError if one ended early or found part of its prompt in the cache.
    """
    waiting = deque(requests)
    done: list[Timeline] = []
    running: dict[str, Timeline] = {}
    hits = engine.stats().prefix_hits
    while waiting or running:
        while waiting and len(running) < concurrency:
            request = waiting.popleft()
            running[request.request_id] = Timeline(added=time.perf_counter())
            engine.add(request)
        deltas = engine.step()
        now = time.perf_counter()
        for delta in deltas:
            running[delta.request_id].tokens.extend([now] * len(delta.token_ids))
            if delta.finish_reason is not None:
                if delta.finish_reason != "length":
                    raise BenchmarkError(f"a request ended by {delta.finish_reason}: {delta.error}")
                done.append(running.pop(delta.request_id))
    if engine.stats().prefix_hits != hits:
        raise BenchmarkError(
            "prompts were found in the prefix cache, so work was skipped",
            hint="--no-prefix-caching, or longer prompts",
        )
    return done


def check_lengths(engine: Engine, input_len: int, output_len: int) -> None:
    """Raises ConfigError if a request would not fit."""
    if input_len + output_len > engine.max_model_len:
        raise ConfigError(
            f"{input_len} tokens in and {output_len} out exceed the longest sequence of "
            f"{engine.max_model_len}",
            hint="smaller --input-len and --output-len, or a larger --max-model-len",
        )
