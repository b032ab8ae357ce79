"""Health, metrics, version, plan."""

from __future__ import annotations

import asyncio
import contextlib

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from allmetal import __version__
from allmetal.engine.asks import AskState
from allmetal.engine.engine import EngineStats
from allmetal.errors import AllmetalError
from allmetal.platform.render import to_json
from allmetal.server import errors
from allmetal.server.metrics import Metrics
from allmetal.server.openapi import describe
from allmetal.server.responses import JSON
from allmetal.server.state import state_of

# A scrape does not wait for a long step; it gets the numbers of the one before.
_STATS_TIMEOUT_S = 1.0


def routes() -> list[BaseRoute]:
    return [
        Route("/v1/platform", platform),
        Route("/health", health),
        Route("/ready", ready),
        Route("/load", load),
        Route("/metrics", metrics),
        Route("/version", version),
        Route("/openapi.json", openapi),
    ]


async def health(request: Request) -> Response:
    """200 while the engine lives, 503 after."""
    error = state_of(request).engine.error
    if error is None:
        return JSON({"status": "ok"})
    return JSON({"status": "dead", "reason": error.message}, status_code=503)


async def ready(request: Request) -> Response:
    """200 while new requests are taken; 503 while starting again, draining, paused, or dead."""
    state = state_of(request)
    if state.phase.draining:
        return errors.response(errors.NotReadyError("the server is being stopped"))
    if (error := state.engine.error) is not None:
        return errors.response(error)
    with contextlib.suppress(asyncio.TimeoutError):  # a long step is no reason to look elsewhere
        now = await asyncio.wait_for(state.engine.call(AskState()), _STATS_TIMEOUT_S)
        if now.paused or now.draining:
            return errors.response(errors.NotReadyError("the engine takes no new work for now"))
    return JSON({"status": "ready"})


async def load(request: Request) -> Response:
    """How busy the engine is, for balancers: sequences, and the share of the cache in use."""
    stats = await state_of(request).engine.stats()
    return JSON(
        {
            "running": stats.num_running,
            "waiting": stats.num_waiting,
            "kv_cache_usage": stats.kv_usage,
        }
    )


async def metrics(request: Request) -> Response:
    state = state_of(request)
    stats: EngineStats | None = None
    with contextlib.suppress(AllmetalError, asyncio.TimeoutError):
        stats = await asyncio.wait_for(state.engine.stats(), _STATS_TIMEOUT_S)
    return Response(state.metrics.render(stats), media_type=Metrics.content_type)


async def platform(request: Request) -> Response:
    """The plan: what was asked, what it got, and why."""
    return JSON(to_json(state_of(request).engine.plan))


async def openapi(request: Request) -> Response:
    """This document."""
    return JSON(describe(request.app.routes))


async def version(_: Request) -> Response:
    return JSON({"version": __version__})
