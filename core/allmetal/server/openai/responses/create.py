"""POST /v1/responses."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from allmetal.errors import RequestError
from allmetal.request import SamplingParams
from allmetal.server.bodies import decode, takes
from allmetal.server.dialogue import written
from allmetal.server.errors import body_of
from allmetal.server.openai.responses.ask import asked, sampling_of
from allmetal.server.openai.responses.items import Json, items_of
from allmetal.server.openai.responses.protocol import ResponseRequest
from allmetal.server.openai.responses.store import Record
from allmetal.server.openai.responses.writer import ResponseWriter
from allmetal.server.responses import JSON
from allmetal.server.sse import EventStream, Wire, named, unless_disconnected
from allmetal.server.state import ServerState, state_of
from allmetal.server.turn import Turn, prepare


def _failed(error: Exception) -> bytes:
    said = body_of(error)["error"]
    return named({**said, "type": "error", "sequence_number": 0})


WIRE = Wire(item=named, failed=_failed)


@takes(ResponseRequest)
async def create_response(request: Request) -> Response:
    state = state_of(request)
    raw = await request.body()
    body = decode(raw, ResponseRequest)
    state.check_model(body.model)
    record = await _begin(state, body, len(raw))
    if body.background:
        if body.stream:
            return await EventStream.start(request.receive, record.follow(), WIRE)
        return JSON(record.response)
    if body.stream:
        return await EventStream.start(request.receive, _watched(record), WIRE)
    return JSON(await unless_disconnected(request.receive, _whole(record)))


async def _begin(state: ServerState, body: ResponseRequest, num_bytes: int) -> Record:
    """Set it going.  Raises RequestError before anything is kept."""
    store = state.responses
    if body.store or body.background or body.previous_response_id is not None:
        store.check()
    if body.background and body.store is False:
        raise RequestError("a response in the background must be stored", hint="leave store out")
    items = items_of(body.input)
    before: list[Json] = []
    if body.previous_response_id is not None:
        previous = store.get(body.previous_response_id)
        before, num_bytes = _history(previous), num_bytes + previous.num_bytes
    sampling = sampling_of(body, state.sampling_defaults)
    turn = await prepare(state, asked(body, [*before, *items]), sampling)
    stored = body.store is not False and store.limit > 0
    record = Record(
        response=_head(state, body, sampling, stored=stored),
        input_items=items,
        history=[*before, *items],
        num_bytes=num_bytes,
        replays=bool(body.background and body.stream),
    )
    if stored:
        store.put(record)
    record.task = asyncio.create_task(_write(state, body, turn, record))
    return record


def _history(record: Record) -> list[Json]:
    status = record.response["status"]
    if status not in ("completed", "incomplete"):
        raise RequestError(
            f"response {record.id!r} is {status}, so nothing can follow it",
            hint="wait until it is completed",
        )
    return [*record.history, *record.response["output"]]


async def _write(state: ServerState, body: ResponseRequest, turn: Turn, record: Record) -> None:
    writer = ResponseWriter(record.response)
    if body.background:
        record.add(writer.queued())
    begun = bool(body.background)  # then there is somebody only an event can tell
    parts = written(
        state,
        turn,
        request_id=record.id,
        priority=body.priority or 0,
        cache_salt=body.cache_salt or "",
    )
    try:
        async with aclosing(parts):
            async for part in parts:
                record.add(writer.take(part))
                begun = True
    except asyncio.CancelledError:
        writer.cancel()
    except Exception as error:  # whoever waits for it is told
        record.error, record.told = error, begun
        if begun:
            record.add(writer.fail(error))
        else:
            state.responses.remove(record.id)
    finally:
        record.end()


async def _watched(record: Record) -> AsyncGenerator[Json, None]:
    """Its events; who leaves ends it."""
    try:
        async with aclosing(record.follow()) as events:
            async for event in events:
                yield event
    finally:
        record.cancel()


async def _whole(record: Record) -> Json:
    async with aclosing(_watched(record)) as events:
        async for _ in events:
            pass
    if record.error is not None:
        raise record.error
    return record.response


def _head(
    state: ServerState, body: ResponseRequest, sampling: SamplingParams, *, stored: bool
) -> Json:
    reasoning, text = body.reasoning, body.text
    wanted: dict[str, Any] = {"type": "text"}
    if text is not None and (given := text.format) is not None:
        names = ("type", "name", "description", "schema", "strict")
        wanted = {n: v for n in names if (v := getattr(given, n)) is not None}
    return {
        "id": f"resp_{uuid.uuid4().hex}",
        "object": "response",
        "created_at": int(time.time()),
        "status": "queued",
        "background": bool(body.background),
        "error": None,
        "incomplete_details": None,
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "model": state.model_name,
        "output": [],
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "previous_response_id": body.previous_response_id,
        "reasoning": {"effort": reasoning and reasoning.effort, "summary": None},
        "service_tier": "default",
        "store": stored,
        "temperature": sampling.temperature,
        "text": {"format": wanted},
        "tool_choice": body.tool_choice or "auto",
        "tools": body.tools or [],
        "top_p": sampling.top_p,
        "truncation": "disabled",
        "usage": None,
        "metadata": body.metadata or {},
    }
