"""When what happened to one request, for those who count, log or trace it."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from allmetal.request import RequestOutput, SamplingParams
from allmetal.server import context


@dataclass(slots=True, kw_only=True)
class Timeline:
    """Times are of `time.perf_counter`, in seconds; None: it did not come to that.

    `first_token` and `last_token` are when they were there, `queue_s` is how long the engine let
    it wait.  `finish_reasons` has one of each of its completions.
    """

    request_id: str
    sampling: SamplingParams
    trace_parent: str = field(default_factory=context.trace_parent.get)
    name: str = field(default_factory=context.request_id.get)
    started_ns: int = field(default_factory=time.time_ns)  # of the clock on the wall
    arrival: float = field(default_factory=time.perf_counter)
    first_token: float | None = None
    last_token: float | None = None
    end: float | None = None
    queue_s: float = 0.0
    num_prompt: int = 0
    num_cached: int = 0
    num_output: int = 0
    output_lengths: list[int] = field(default_factory=list)
    finish_reasons: list[str] = field(default_factory=list)
    error: str | None = None

    @property
    def e2e_s(self) -> float:
        assert self.end is not None
        return self.end - self.arrival

    @property
    def ttft_s(self) -> float | None:
        return None if self.first_token is None else self.first_token - self.arrival

    @property
    def prefill_s(self) -> float | None:
        """From its first step to its first token."""
        return None if self.ttft_s is None else max(0.0, self.ttft_s - self.queue_s)

    @property
    def decode_s(self) -> float | None:
        if self.first_token is None or self.last_token is None:
            return None
        return self.last_token - self.first_token

    @property
    def tpot_s(self) -> float | None:
        """Time per output token after the first, of one completion."""
        later = self.num_output - len(self.output_lengths)
        if self.decode_s is None or later <= 0:
            return None
        return self.decode_s * len(self.output_lengths) / later


class Observer(Protocol):
    """Who wants to know; must neither wait nor raise."""

    def tokens(self, gap_s: float, number: int) -> None:
        """`number` tokens came, each `gap_s` after the one before it in its sequence."""

    def ended(self, timeline: Timeline) -> None:
        """However it ended."""


async def observed(
    outputs: AsyncGenerator[RequestOutput, None],
    timeline: Timeline,
    observers: Sequence[Observer],
) -> AsyncGenerator[RequestOutput, None]:
    """Pass `outputs` through, taking their times.  Closing this closes `outputs`."""
    last: RequestOutput | None = None
    reason = "abort"  # unless it ends by itself, it is left
    try:
        async for output in outputs:
            last = output
            _note(timeline, output, observers)
            yield output
        reason = ""
    except Exception as error:
        reason, timeline.error = "error", str(error)
        raise
    finally:
        await outputs.aclose()
        _close(timeline, last, reason)
        for observer in observers:
            observer.ended(timeline)


def _note(timeline: Timeline, output: RequestOutput, observers: Sequence[Observer]) -> None:
    known = sum(len(choice.token_ids) for choice in output.outputs)
    new = known - timeline.num_output
    if new <= 0:
        return
    now = time.perf_counter()
    if timeline.last_token is None:
        timeline.first_token = now
    else:
        # Tokens that came together are spaced evenly over the wait for them.
        gap_s = (now - timeline.last_token) * len(output.outputs) / new
        for observer in observers:
            observer.tokens(gap_s, new)
    timeline.last_token, timeline.num_output = now, known


def _close(timeline: Timeline, last: RequestOutput | None, reason: str) -> None:
    timeline.end = time.perf_counter()
    if last is None:
        timeline.finish_reasons = [reason or "abort"]
        return
    timeline.error = timeline.error or last.error
    timeline.queue_s, timeline.num_cached = last.queue_s, last.num_cached_tokens
    timeline.num_prompt = len(last.prompt_token_ids)
    timeline.output_lengths = [len(choice.token_ids) for choice in last.outputs]
    timeline.finish_reasons = [each.finish_reason or reason or "abort" for each in last.outputs]
