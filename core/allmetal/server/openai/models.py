"""GET /v1/models."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from allmetal.server.responses import JSON
from allmetal.server.state import ServerState, state_of


async def list_models(request: Request) -> Response:
    return JSON({"object": "list", "data": [_card(state_of(request))]})


async def show_model(request: Request) -> Response:
    state = state_of(request)
    state.check_model(request.path_params["name"])
    return JSON(_card(state))


def _card(state: ServerState) -> dict[str, Any]:
    return {
        "id": state.model_name,
        "object": "model",
        "created": state.created,
        "owned_by": "allmetal",
        "max_model_len": state.engine.ready.max_model_len,
    }
