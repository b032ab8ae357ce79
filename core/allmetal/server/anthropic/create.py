"""POST /v1/messages and /v1/messages/count_tokens."""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from allmetal.request import SamplingParams
from allmetal.server.anthropic.ask import asked, sampling_of
from allmetal.server.anthropic.events import MessageWriter
from allmetal.server.anthropic.protocol import (
    ConversationBody,
    CountTokensRequest,
    MessagesRequest,
)
from allmetal.server.bodies import decode, takes
from allmetal.server.dialogue import written
from allmetal.server.errors import body_of
from allmetal.server.responses import JSON
from allmetal.server.sse import EventStream, Wire, named, unless_disconnected
from allmetal.server.state import ServerState, state_of
from allmetal.server.turn import Turn, prepare

_WIRE = Wire(item=named, failed=lambda error: named(body_of(error)))


@takes(MessagesRequest)
async def create_message(request: Request) -> Response:
    state = state_of(request)
    body = decode(await request.body(), MessagesRequest)
    state.check_model(body.model)
    sampling = sampling_of(body, state.sampling_defaults)
    turn = await _turn(state, body, sampling)
    writer = MessageWriter(
        f"msg_{uuid.uuid4().hex}", state.model_name, stop_sequences=sampling.stop
    )
    events = _events(state, turn, writer)
    if body.stream:
        return await EventStream.start(request.receive, events, _WIRE)
    await unless_disconnected(request.receive, _all(events))
    return JSON(writer.message)


@takes(CountTokensRequest)
async def count_tokens(request: Request) -> Response:
    state = state_of(request)
    body = decode(await request.body(), CountTokensRequest)
    state.check_model(body.model)
    turn = await _turn(state, body, SamplingParams(max_tokens=None))
    return JSON({"input_tokens": len(turn.prompt)})


async def _turn(state: ServerState, body: ConversationBody, sampling: SamplingParams) -> Turn:
    wanted, begun = asked(body)
    turn = await prepare(state, wanted, sampling)
    if not begun:
        return turn
    more = await state.engine.in_thread(state.engine.tokenizer.encode, begun, False)
    return replace(turn, prompt=[*turn.prompt, *more])


async def _events(
    state: ServerState, turn: Turn, writer: MessageWriter
) -> AsyncGenerator[dict[str, Any], None]:
    parts = written(state, turn, request_id=writer.message["id"])
    async with aclosing(parts):
        async for part in parts:
            for event in writer.take(part):
                yield event


async def _all(events: AsyncGenerator[object, None]) -> None:
    async with aclosing(events):
        async for _ in events:
            pass
