from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import pytest

from allmetal.errors import RequestError
from allmetal.request import CompletionOutput, Logprobs, RequestOutput
from allmetal.server.openai.choices import Progress, finished, merge, usage


def output(*choices: CompletionOutput, finished: bool = False) -> RequestOutput:
    return RequestOutput(
        request_id="r",
        prompt="p",
        prompt_token_ids=[1, 2, 3],
        outputs=list(choices),
        finished=finished,
        num_cached_tokens=2,
    )


def logprob(token: int) -> Logprobs:
    return Logprobs(token_ids=[token], logprobs=[-1.0], ranks=[1])


def test_what_comes_while_a_delta_is_being_written_is_in_the_next_one() -> None:
    progress = Progress()
    choice = CompletionOutput(index=0)
    text, tokens, reasons = "", [], []
    choice.text, choice.token_ids = "ab", [1]
    for _ in range(3):
        for delta in progress.advance(output(choice)):
            text += delta.text
            tokens += delta.token_ids
            reasons.append(delta.finish_reason)
            if not choice.finish_reason:  # the output grows before the generator goes on
                choice.text, choice.token_ids, choice.finish_reason = "abcd", [1, 2], "stop"

    assert (text, tokens) == ("abcd", [1, 2])
    assert reasons == [None, "stop"]


def test_deltas_add_up_to_the_whole_even_if_states_are_skipped() -> None:
    progress = Progress(offset=10)
    choice = CompletionOutput(index=1)
    text, tokens, firsts = "", [], []
    for piece, ids, reason in (("ab", [1, 2], None), ("", [3], None), ("cde", [4], "stop")):
        choice.text += piece
        choice.token_ids += ids
        choice.finish_reason = reason  # type: ignore[assignment]
        for delta in progress.advance(output(choice)):
            text += delta.text
            tokens += delta.token_ids
            firsts.append(delta.first)
            assert delta.index == 11

    assert (text, tokens, firsts) == ("abcde", [1, 2, 3, 4], [True, False])
    assert list(progress.advance(output(choice))) == []


def test_tokens_without_text_are_news_when_their_logprobs_are_wanted() -> None:
    progress = Progress()
    choice = CompletionOutput(index=0, token_ids=[5], logprobs=[logprob(5)])
    [first] = progress.advance(output(choice))
    choice.token_ids.append(6)
    assert choice.logprobs is not None
    choice.logprobs.append(logprob(6))
    [second] = progress.advance(output(choice))

    assert [first.logprobs, second.logprobs] == [[logprob(5)], [logprob(6)]]


class Stream:
    """Yields `count` outputs, then raises `error` if there is one."""

    def __init__(self, count: int, error: Exception | None = None) -> None:
        self.count, self.error, self.closed = count, error, False

    async def __call__(self) -> AsyncGenerator[RequestOutput, None]:
        try:
            for number in range(self.count):
                await asyncio.sleep(0.001)
                ids = [0] * (number + 1)
                choice = CompletionOutput(index=0, token_ids=ids, finish_reason="stop")
                yield output(choice, finished=number == self.count - 1)
            if self.error is not None:
                raise self.error
        finally:
            self.closed = True


def test_the_last_output_of_each_stream_comes_back_in_order() -> None:
    outputs = asyncio.run(finished([Stream(3)(), Stream(1)(), Stream(5)()]))

    assert [3, 1, 5] == [len(one.outputs[0].token_ids) for one in outputs]
    assert usage(outputs) == {
        "prompt_tokens": 9,
        "completion_tokens": 9,
        "total_tokens": 18,
        "prompt_tokens_details": {"cached_tokens": 6},
    }


def test_an_error_of_one_stream_ends_all() -> None:
    streams = [Stream(1000), Stream(2, RequestError("no")), Stream(1000)]

    with pytest.raises(RequestError, match="no"):
        asyncio.run(finished([stream() for stream in streams]))

    assert all(stream.closed for stream in streams)


def test_closing_early_closes_all() -> None:
    streams = [Stream(1000), Stream(1000)]

    async def main() -> None:
        merged = merge([stream() for stream in streams])
        await anext(merged)
        await merged.aclose()

    asyncio.run(main())

    assert all(stream.closed for stream in streams)
