"""POST /v1/completions."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncGenerator, Iterator
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from allmetal.engine.output import Prompt
from allmetal.errors import RequestError
from allmetal.request import RequestOutput, SamplingParams
from allmetal.server.bodies import decode, takes
from allmetal.server.openai.choices import (
    ChoiceDelta,
    Outputs,
    Progress,
    finished,
    merge,
    usage,
)
from allmetal.server.openai.logprobs import CompletionLogprobs, TokenText, joined
from allmetal.server.openai.protocol import CompletionRequest
from allmetal.server.openai.sampling import for_completion
from allmetal.server.responses import JSON
from allmetal.server.sse import EventStream, unless_disconnected
from allmetal.server.state import ServerState, state_of


@takes(CompletionRequest)
async def create_completion(request: Request) -> Response:
    state = state_of(request)
    body = decode(await request.body(), CompletionRequest)
    state.check_model(body.model)
    sampling, prompts = for_completion(body, state.sampling_defaults), _prompts(body)
    state.check_sequences(len(prompts), sampling.n)
    call = _Call(state, body, sampling, prompts)
    if body.stream:
        return await EventStream.start(request.receive, call.chunks())
    return JSON(await unless_disconnected(request.receive, call.whole()))


def _prompts(body: CompletionRequest) -> list[Prompt]:
    """One prompt or many, each a text or token ids."""
    prompt = body.prompt
    if isinstance(prompt, str):
        return [prompt]
    ids = [item for item in prompt if isinstance(item, int)]
    if ids and len(ids) == len(prompt):
        return [ids]
    many: list[Prompt] = [item for item in prompt if not isinstance(item, int)]
    if not many or ids:
        raise RequestError(
            "prompt must be a text, a list of texts, a list of token ids or a list of such lists"
        )
    return many


@dataclass(slots=True)
class _Call:
    """One request's way to its answer."""

    state: ServerState
    body: CompletionRequest
    sampling: SamplingParams
    prompts: list[Prompt]
    id: str = field(default_factory=lambda: f"cmpl-{uuid.uuid4().hex}")
    created: int = field(default_factory=lambda: int(time.time()))
    _logprobs: dict[int, CompletionLogprobs] = field(default_factory=dict)

    async def whole(self) -> dict[str, Any]:
        outputs = await finished(self._streams())
        choices = [
            choice
            for index, output in enumerate(outputs)
            for choice in self._choices(self._progress(index), output)
        ]
        return {**self._head(), "choices": choices, "usage": self._usage(outputs)}

    async def chunks(self) -> AsyncGenerator[object, None]:
        progress = [self._progress(index) for index in range(len(self.prompts))]
        last: dict[int, RequestOutput] = {}
        merged = merge(self._streams())
        try:
            async for index, output in merged:
                last[index] = output
                for choice in self._choices(progress[index], output):
                    yield {**self._head(), "choices": [choice]}
        finally:
            await merged.aclose()
        if self.body.stream_options is not None and self.body.stream_options.include_usage:
            yield {**self._head(), "choices": [], "usage": self._usage(list(last.values()))}

    def _streams(self) -> list[Outputs]:
        return [
            self.state.generate(
                prompt,
                self.sampling,
                request_id=f"{self.id}-{index}",
                priority=self.body.priority or 0,
                cache_salt=self.body.cache_salt or "",
            )
            for index, prompt in enumerate(self.prompts)
        ]

    def _progress(self, index: int) -> Progress:
        return Progress(offset=index * self.sampling.n)

    def _head(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": "text_completion",
            "created": self.created,
            "model": self.state.model_name,
        }

    def _usage(self, outputs: list[RequestOutput]) -> dict[str, object]:
        return usage(outputs, count_output=self.body.max_tokens != 0)

    def _choices(self, progress: Progress, output: RequestOutput) -> Iterator[dict[str, Any]]:
        for delta in progress.advance(output):
            choice = self._choice(delta, output)
            if output.prompt_logprobs is not None and delta.first:
                choice["prompt_logprobs"] = output.prompt_logprobs
            yield choice

    def _choice(self, delta: ChoiceDelta, output: RequestOutput) -> dict[str, Any]:
        text, token_ids, entries = delta.text, delta.token_ids, delta.logprobs
        if self.body.max_tokens == 0:  # only the prompt is wanted
            text, token_ids, entries = "", [], entries and []
        logprobs = None
        if entries is not None:
            made = self._logprobs.setdefault(
                delta.index, CompletionLogprobs(TokenText(self.state.engine.tokenizer))
            )
            if self.body.echo and delta.first:
                logprobs = made.add(output.prompt_logprobs or [], output.prompt_token_ids)
            new = made.add(entries, token_ids)
            logprobs = new if logprobs is None else joined(logprobs, new)
        if self.body.echo and delta.first:
            text = self._prompt_text(output) + text
        return {
            "index": delta.index,
            "text": text,
            "logprobs": logprobs,
            "finish_reason": delta.finish_reason,
            "stop_reason": delta.stop_reason,
        }

    def _prompt_text(self, output: RequestOutput) -> str:
        if output.prompt is not None:
            return output.prompt
        return self.state.engine.tokenizer.decode(output.prompt_token_ids)
