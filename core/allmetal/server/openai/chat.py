"""POST /v1/chat/completions."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from allmetal.request import RequestOutput, SamplingParams
from allmetal.server.bodies import decode
from allmetal.server.openai.choices import ChoiceDelta, Outputs, Progress, finished, usage
from allmetal.server.openai.logprobs import TokenText, for_chat
from allmetal.server.openai.messages import plain_messages
from allmetal.server.openai.protocol import ChatRequest
from allmetal.server.openai.sampling import for_chat as sampling_for_chat
from allmetal.server.responses import JSON
from allmetal.server.sse import EventStream, unless_disconnected
from allmetal.server.state import ServerState, state_of


async def create_chat_completion(request: Request) -> Response:
    state = state_of(request)
    body = decode(await request.body(), ChatRequest)
    state.check_model(body.model)
    sampling = sampling_for_chat(body, state.sampling_defaults)
    prompt = await state.engine.chat_prompt(
        plain_messages(body.messages),
        add_generation_prompt=body.add_generation_prompt is not False,
        **(body.chat_template_kwargs or {}),
    )
    call = _Call(state, body, sampling, prompt)
    if body.stream:
        return await EventStream.start(request.receive, call.chunks())
    return JSON(await unless_disconnected(request.receive, call.whole()))


@dataclass(slots=True)
class _Call:
    """One request's way to its answer."""

    state: ServerState
    body: ChatRequest
    sampling: SamplingParams
    prompt: list[int]
    id: str = field(default_factory=lambda: f"chatcmpl-{uuid.uuid4().hex}")
    created: int = field(default_factory=lambda: int(time.time()))

    async def whole(self) -> dict[str, Any]:
        [output] = await finished([self._outputs()])
        choices = [
            self._choice(delta, "message", {"role": "assistant", "content": delta.text})
            for delta in Progress().advance(output)
        ]
        answer = {**self._head("chat.completion"), "choices": choices, "usage": usage([output])}
        if output.prompt_logprobs is not None:
            answer["prompt_logprobs"] = output.prompt_logprobs
        return answer

    async def chunks(self) -> AsyncGenerator[object, None]:
        progress = Progress()
        outputs = self._outputs()
        last: RequestOutput | None = None
        try:
            async for output in outputs:
                if last is None:
                    for index in range(self.sampling.n):
                        yield self._opening(index)
                last = output
                for delta in progress.advance(output):
                    content = {"content": delta.text} if delta.text else {}
                    yield self._chunk([self._choice(delta, "delta", content)])
        finally:
            await outputs.aclose()
        options = self.body.stream_options
        if options is not None and options.include_usage and last is not None:
            yield {**self._chunk([]), "usage": usage([last])}

    def _outputs(self) -> Outputs:
        return self.state.generate(
            self.prompt,
            self.sampling,
            request_id=self.id,
            priority=self.body.priority or 0,
            cache_salt=self.body.cache_salt or "",
        )

    def _head(self, kind: str) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.state.model_name,
        }

    def _chunk(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {**self._head("chat.completion.chunk"), "choices": choices}

    def _opening(self, index: int) -> dict[str, Any]:
        delta = {"role": "assistant", "content": ""}
        return self._chunk([{"index": index, "delta": delta, "finish_reason": None}])

    def _choice(self, delta: ChoiceDelta, name: str, content: dict[str, Any]) -> dict[str, Any]:
        text = TokenText(self.state.engine.tokenizer)
        top = self.body.top_logprobs or 0
        return {
            "index": delta.index,
            name: content,
            "logprobs": None if delta.logprobs is None else for_chat(text, delta.logprobs, top),
            "finish_reason": delta.finish_reason,
            "stop_reason": delta.stop_reason,
        }
