"""GET /v1/models, in the shape of OpenAI's API, or of Anthropic's to its clients."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from allmetal.server.responses import JSON
from allmetal.server.state import ServerState, state_of


async def list_models(request: Request) -> Response:
    state = state_of(request)
    if _is_anthropic(request):
        name = state.model_name
        ends = {"first_id": name, "last_id": name, "has_more": False}
        return JSON({"data": [_anthropic_card(state)], **ends})
    return JSON({"object": "list", "data": [_card(state)]})


async def show_model(request: Request) -> Response:
    state = state_of(request)
    state.check_model(request.path_params["name"])
    return JSON(_anthropic_card(state) if _is_anthropic(request) else _card(state))


def _is_anthropic(request: Request) -> bool:
    return "anthropic-version" in request.headers


def _card(state: ServerState) -> dict[str, Any]:
    return {
        "id": state.model_name,
        "object": "model",
        "created": state.created,
        "owned_by": "allmetal",
        "max_model_len": state.engine.ready.max_model_len,
    }


def _anthropic_card(state: ServerState) -> dict[str, Any]:
    created = datetime.fromtimestamp(state.created, UTC)
    return {
        "id": state.model_name,
        "type": "model",
        "display_name": state.model_name,
        "created_at": created.isoformat().replace("+00:00", "Z"),
        "lifecycle": "active",
        "max_input_tokens": state.engine.ready.max_model_len,
    }
