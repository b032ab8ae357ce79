"""What is new in each completion of a request since it was last looked at."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator, Sequence
from dataclasses import dataclass, field

from allmetal.request import FinishReason, Logprobs, RequestOutput


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoiceDelta:
    """News of one choice.  `first`: there was none before."""

    index: int
    first: bool
    text: str
    token_ids: list[int]
    logprobs: list[Logprobs] | None
    finish_reason: FinishReason | None
    stop_reason: int | str | None


@dataclass(slots=True)
class _Seen:
    text: int = 0
    tokens: int = 0
    first: bool = True
    finished: bool = False


@dataclass(slots=True)
class Progress:
    """Turns a request's outputs, which are cumulative, into deltas.

    `offset` is added to the indices of its choices.  Text and tokens need not come together: text
    is held back while it may become half a character or a stop string.
    """

    offset: int = 0
    _seen: dict[int, _Seen] = field(default_factory=dict)

    def advance(self, output: RequestOutput) -> Iterator[ChoiceDelta]:
        for choice in output.outputs:
            seen = self._seen.setdefault(choice.index, _Seen())
            text, token_ids = choice.text[seen.text :], choice.token_ids[seen.tokens :]
            logprobs = choice.logprobs
            is_news = text or choice.finish_reason or (logprobs is not None and token_ids)
            if seen.finished or not is_news:
                continue
            delta = ChoiceDelta(
                index=self.offset + choice.index,
                first=seen.first,
                text=text,
                token_ids=token_ids,
                logprobs=None if logprobs is None else logprobs[seen.tokens :],
                finish_reason=choice.finish_reason,
                stop_reason=choice.stop_reason,
            )
            # Before the yield: the output grows while whoever takes this writes to a client.
            seen.text, seen.tokens = len(choice.text), len(choice.token_ids)
            seen.first, seen.finished = False, choice.finish_reason is not None
            yield delta


Outputs = AsyncGenerator[RequestOutput, None]


async def merge(streams: Sequence[Outputs]) -> AsyncGenerator[tuple[int, RequestOutput], None]:
    """Outputs of several requests with the index of each's stream, as they come.

    An error of one ends all.  Closing this closes all.
    """
    if len(streams) == 1:  # most often: no task and no queue between it and the client
        try:
            async for output in streams[0]:
                yield 0, output
        finally:
            await streams[0].aclose()
        return
    queue: asyncio.Queue[tuple[int, RequestOutput] | Exception | None] = asyncio.Queue()

    async def pump(index: int, stream: Outputs) -> None:
        try:
            async for output in stream:
                queue.put_nowait((index, output))
            queue.put_nowait(None)
        except Exception as error:  # handed on below
            queue.put_nowait(error)

    tasks = [asyncio.create_task(pump(i, stream)) for i, stream in enumerate(streams)]
    open_streams = len(tasks)
    try:
        while open_streams:
            item = await queue.get()
            if isinstance(item, Exception):
                raise item
            if item is None:
                open_streams -= 1
            else:
                yield item
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def finished(streams: Sequence[Outputs]) -> list[RequestOutput]:
    """The last output of each request."""
    final: dict[int, RequestOutput] = {}
    merged = merge(streams)
    try:
        async for index, output in merged:
            final[index] = output
    finally:
        await merged.aclose()
    return [final[index] for index in range(len(streams))]


def usage(outputs: Sequence[RequestOutput], *, count_output: bool = True) -> dict[str, object]:
    prompt = sum(len(output.prompt_token_ids) for output in outputs)
    completion = sum(len(c.token_ids) for output in outputs for c in output.outputs)
    completion = completion if count_output else 0
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": sum(o.num_cached_tokens for o in outputs)},
    }
