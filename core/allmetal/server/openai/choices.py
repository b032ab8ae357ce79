"""What is new in each completion of a request since it was last looked at."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field

from allmetal.errors import EngineDeadError
from allmetal.request import FinishReason, Logprobs, RequestOutput


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoiceDelta:
    """News of one choice; all of it when its request has ended at once."""

    index: int
    text: str
    token_ids: list[int]
    logprobs: list[Logprobs] | None
    finish_reason: FinishReason | None
    stop_reason: int | str | None


@dataclass(slots=True)
class _Seen:
    text: int = 0
    tokens: int = 0
    finished: bool = False


@dataclass(slots=True)
class Progress:
    """Turns outputs, which are cumulative, into deltas.  `offset` is added to their indices."""

    offset: int = 0
    _seen: dict[int, _Seen] = field(default_factory=dict)

    def advance(self, output: RequestOutput) -> Iterator[ChoiceDelta]:
        for choice in output.outputs:
            seen = self._seen.setdefault(choice.index, _Seen())
            text, token_ids = choice.text[seen.text :], choice.token_ids[seen.tokens :]
            if seen.finished or not (text or token_ids or choice.finish_reason):
                continue
            logprobs = choice.logprobs
            yield ChoiceDelta(
                index=self.offset + choice.index,
                text=text,
                token_ids=token_ids,
                logprobs=None if logprobs is None else logprobs[seen.tokens :],
                finish_reason=choice.finish_reason,
                stop_reason=choice.stop_reason,
            )
            seen.text, seen.tokens = len(choice.text), len(choice.token_ids)
            seen.finished = choice.finish_reason is not None


async def last(outputs: AsyncIterator[RequestOutput]) -> RequestOutput:
    """The finished output."""
    final = None
    async for output in outputs:
        final = output
    if final is None:
        raise EngineDeadError("the engine ended a request without an answer")
    return final


def usage(outputs: list[RequestOutput]) -> dict[str, object]:
    prompt = sum(len(output.prompt_token_ids) for output in outputs)
    completion = sum(len(c.token_ids) for output in outputs for c in output.outputs)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": sum(o.num_cached_tokens for o in outputs)},
    }
