"""What is noted of a request, however it ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import pytest

from allmetal.errors import RequestError
from allmetal.request import CompletionOutput, RequestOutput, SamplingParams
from allmetal.server.timeline import Timeline, observed


class Notes:
    """An observer that keeps what it is told."""

    def __init__(self) -> None:
        self.gaps: list[tuple[float, int]] = []
        self.timelines: list[Timeline] = []

    def tokens(self, gap_s: float, number: int) -> None:
        self.gaps.append((gap_s, number))

    def ended(self, timeline: Timeline) -> None:
        self.timelines.append(timeline)


def stream(
    steps: list[int], *, error: Exception | None = None, n: int = 1
) -> AsyncGenerator[RequestOutput, None]:
    """An output that grows by as many tokens of each completion, every 20 ms."""
    output = RequestOutput(
        request_id="r",
        prompt=None,
        prompt_token_ids=[1, 2, 3],
        outputs=[CompletionOutput(index=index) for index in range(n)],
        num_cached_tokens=2,
        queue_s=0.005,
    )

    async def outputs() -> AsyncGenerator[RequestOutput, None]:
        for number, step in enumerate(steps):
            await asyncio.sleep(0.02)
            for choice in output.outputs:
                choice.token_ids += [7] * step
                choice.finish_reason = "stop" if number == len(steps) - 1 and not error else None
            yield output
        if error is not None:
            raise error

    return outputs()


def watch(outputs: AsyncGenerator[RequestOutput, None], *, leave_after: int = 99) -> Notes:
    notes = Notes()

    async def main() -> None:
        timeline = Timeline(request_id="r", sampling=SamplingParams())
        passed = observed(outputs, timeline, [notes])
        for _ in range(leave_after):
            if await anext(passed, None) is None:
                break
        await passed.aclose()

    try:
        asyncio.run(main())
    finally:
        assert len(notes.timelines) == 1
    return notes


def test_the_parts_of_a_requests_time_add_up() -> None:
    [timeline] = watch(stream([1, 1, 1, 1])).timelines

    assert (timeline.num_prompt, timeline.num_cached, timeline.num_output) == (3, 2, 4)
    assert timeline.finish_reasons == ["stop"]
    assert timeline.ttft_s is not None
    assert timeline.prefill_s == pytest.approx(timeline.ttft_s - 0.005)
    assert timeline.decode_s == pytest.approx(timeline.e2e_s - timeline.ttft_s, abs=0.01)
    assert 0.06 <= (timeline.decode_s or 0) < 0.2
    assert timeline.tpot_s == pytest.approx((timeline.decode_s or 0) / 3)


def test_tokens_that_came_together_are_spaced_evenly_over_the_wait() -> None:
    notes = watch(stream([1, 4], n=2))

    [(gap_s, number)] = notes.gaps
    assert number == 8
    assert gap_s == pytest.approx((notes.timelines[0].decode_s or 0) / 4)
    assert notes.timelines[0].tpot_s == pytest.approx(gap_s)
    assert notes.timelines[0].output_lengths == [5, 5]


def test_one_that_is_left_early_is_an_abort() -> None:
    [timeline] = watch(stream([1] * 50), leave_after=2).timelines

    assert timeline.finish_reasons == ["abort"]
    assert timeline.num_output == 2


def test_an_error_is_kept_with_what_had_come_before_it() -> None:
    outputs = stream([1, 1], error=RequestError("no"))
    notes = Notes()

    async def main() -> None:
        timeline = Timeline(request_id="r", sampling=SamplingParams())
        async for _ in observed(outputs, timeline, [notes]):
            pass

    with pytest.raises(RequestError, match="no"):
        asyncio.run(main())
    [timeline] = notes.timelines
    assert (timeline.finish_reasons, timeline.error, timeline.num_output) == (["error"], "no", 2)


def test_one_that_never_began_has_no_times_but_an_end() -> None:
    [timeline] = watch(stream([]), leave_after=1).timelines

    assert timeline.ttft_s is timeline.prefill_s is timeline.decode_s is timeline.tpot_s is None
    assert timeline.e2e_s >= 0
    assert timeline.finish_reasons == ["abort"]
