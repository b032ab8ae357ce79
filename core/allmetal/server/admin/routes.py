"""Pause, sleep, abort, drain: what the engine can be told while it serves."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import wraps

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from allmetal.engine.asks import (
    AbortRequests,
    Ask,
    AskState,
    Drain,
    EngineState,
    Pause,
    ResetPrefixCache,
    Resume,
    Sleep,
    Wake,
)
from allmetal.engine.async_engine import AsyncEngine
from allmetal.errors import RequestError, UnavailableError
from allmetal.server.bodies import AnyBody, Body, Int, decode, takes
from allmetal.server.errors import NotFoundError
from allmetal.server.responses import JSON
from allmetal.server.state import state_of

Handler = Callable[[Request], Awaitable[Response]]
_LOOK_EVERY_S = 0.05
_LONGEST_DRAIN_S = 3600.0


class SleepRequest(Body, kw_only=True):
    level: Int = 1


class AbortRequest(Body, kw_only=True):
    """One request by the id of its answer or events, or all there are."""

    request_id: str | None = None
    all: bool | None = None


class DrainRequest(Body, kw_only=True):
    timeout: float = 30.0


def routes() -> list[BaseRoute]:
    said: dict[str, Handler] = {
        "/admin/pause": _telling(Pause()),
        "/admin/resume": _telling(Resume()),
        "/admin/wake": _telling(Wake()),
        "/admin/reset_prefix_cache": _telling(ResetPrefixCache()),
        "/admin/sleep": sleep,
        "/admin/abort": abort,
        "/admin/drain": drain,
        "/v1/load_lora_adapter": lora,
        "/v1/unload_lora_adapter": lora,
    }
    return [
        Route("/admin/state", _guarded(_telling(AskState()))),
        *(Route(path, _guarded(handler), methods=["POST"]) for path, handler in said.items()),
    ]


def _guarded(handler: Handler) -> Handler:
    @wraps(handler)
    async def guarded(request: Request) -> Response:
        if not state_of(request).admin:
            raise NotFoundError(
                "the admin API is off", hint="start the server with --admin and an --api-key"
            )
        return await handler(request)

    return guarded


def _telling(ask: Ask[EngineState]) -> Handler:
    async def tell(request: Request) -> Response:
        return JSON(await state_of(request).engine.call(ask))

    return tell


@takes(SleepRequest)
async def sleep(request: Request) -> Response:
    body = await _body(request, SleepRequest)
    return JSON(await state_of(request).engine.call(Sleep(body.level)))


@takes(AbortRequest)
async def abort(request: Request) -> Response:
    body = await _body(request, AbortRequest)
    if (body.request_id is None) == (not body.all):
        raise RequestError("give either a request_id, or all: true")
    count = await state_of(request).engine.call(AbortRequests(body.request_id))
    return JSON({"aborted": count})


@takes(DrainRequest)
async def drain(request: Request) -> Response:
    """Refuse what is new, and answer when nothing is left or after the body's `timeout` (seconds).

    Resume ends it.
    """
    body = await _body(request, DrainRequest)
    if not 0 <= body.timeout <= _LONGEST_DRAIN_S:
        raise RequestError(f"timeout must be in [0, {_LONGEST_DRAIN_S:g}], not {body.timeout}")
    state = await _drained(state_of(request).engine, body.timeout)
    left = state.num_running + state.num_waiting
    return JSON({**msgspec.structs.asdict(state), "drained": left == 0})


async def _drained(engine: AsyncEngine, timeout_s: float) -> EngineState:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    state = await engine.call(Drain())
    while state.num_running + state.num_waiting and loop.time() < deadline:
        await asyncio.sleep(_LOOK_EVERY_S)
        state = await engine.call(AskState())
    return state


async def lora(request: Request) -> Response:
    raise UnavailableError(
        "LoRA adapters cannot be loaded: no layer here applies one yet",
        hint="merge the adapter into the model's weights, and serve that",
    )


async def _body(request: Request, kind: type[AnyBody]) -> AnyBody:
    """No body is an empty one."""
    return decode(await request.body() or b"{}", kind)
