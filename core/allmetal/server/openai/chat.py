"""POST /v1/chat/completions."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from allmetal.request import RequestOutput
from allmetal.server.bodies import decode, takes
from allmetal.server.conversation import template_arguments
from allmetal.server.openai.choices import ChoiceDelta, Outputs, Progress, finished, usage
from allmetal.server.openai.logprobs import TokenText, for_chat
from allmetal.server.openai.message import Said, delta_of, message_of
from allmetal.server.openai.protocol import ChatRequest
from allmetal.server.openai.sampling import for_chat as sampling_for_chat
from allmetal.server.openai.structured import structured_of
from allmetal.server.responses import JSON
from allmetal.server.sse import EventStream, unless_disconnected
from allmetal.server.state import ServerState, state_of
from allmetal.server.turn import Asked, Turn, prepare


@takes(ChatRequest)
async def create_chat_completion(request: Request) -> Response:
    state = state_of(request)
    body = decode(await request.body(), ChatRequest)
    state.check_model(body.model)
    sampling = sampling_for_chat(body, state.sampling_defaults)
    state.check_sequences(1, sampling.n)
    call = _Call(state, body, await prepare(state, asked(body), sampling))
    if body.stream:
        return await EventStream.start(request.receive, call.chunks())
    return JSON(await unless_disconnected(request.receive, call.whole()))


def asked(body: ChatRequest) -> Asked:
    """A body in the terms that all APIs share."""
    template = template_arguments(body.chat_template_kwargs)
    if body.add_generation_prompt is not None:
        template["add_generation_prompt"] = body.add_generation_prompt
    return Asked(
        messages=body.messages,
        tools=body.tools or (),
        tool_choice=body.tool_choice or "auto",
        parallel_tool_calls=body.parallel_tool_calls is not False,
        structured=structured_of(body),
        reasoning=body.include_reasoning is not False,
        reasoning_effort=body.reasoning_effort,
        thinking_budget=body.thinking_token_budget,
        template=template,
    )


@dataclass(slots=True)
class _Call:
    """One request's way to its answer."""

    state: ServerState
    body: ChatRequest
    turn: Turn
    id: str = field(default_factory=lambda: f"chatcmpl-{uuid.uuid4().hex}")
    created: int = field(default_factory=lambda: int(time.time()))

    async def whole(self) -> dict[str, Any]:
        [output] = await finished([self._outputs()])
        choices = []
        for delta in Progress().advance(output):
            said = Said(self.turn.parser())
            said.take(delta.text, final=True)
            choices.append(self._choice(delta, "message", message_of(said.message), said))
        answer = {**self._head("chat.completion"), "choices": choices, "usage": usage([output])}
        if output.prompt_logprobs is not None:
            answer["prompt_logprobs"] = output.prompt_logprobs
        return answer

    async def chunks(self) -> AsyncGenerator[object, None]:
        progress = Progress()
        said = [Said(self.turn.parser()) for _ in range(self.turn.sampling.n)]
        outputs = self._outputs()
        last: RequestOutput | None = None
        try:
            async for output in outputs:
                if last is None:
                    for index in range(len(said)):
                        yield self._opening(index)
                last = output
                for delta in progress.advance(output):
                    mine = said[delta.index]
                    events = mine.take(delta.text, final=delta.finish_reason is not None)
                    if events or delta.logprobs or delta.finish_reason:
                        news = delta_of(events)
                        yield self._chunk([self._choice(delta, "delta", news, mine)])
        finally:
            await outputs.aclose()
        options = self.body.stream_options
        if options is not None and options.include_usage and last is not None:
            yield {**self._chunk([]), "usage": usage([last])}

    def _outputs(self) -> Outputs:
        return self.state.generate(
            self.turn.prompt,
            self.turn.sampling,
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

    def _choice(
        self, delta: ChoiceDelta, name: str, content: dict[str, Any], said: Said
    ) -> dict[str, Any]:
        text = TokenText(self.state.engine.tokenizer)
        top = self.body.top_logprobs or 0
        return {
            "index": delta.index,
            name: content,
            "logprobs": None if delta.logprobs is None else for_chat(text, delta.logprobs, top),
            "finish_reason": self.turn.finish_reason(delta.finish_reason, said.message),
            "stop_reason": delta.stop_reason,
        }
