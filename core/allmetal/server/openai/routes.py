"""The paths of the OpenAI API."""

from __future__ import annotations

from starlette.routing import BaseRoute, Route

from allmetal.server.openai.chat import create_chat_completion
from allmetal.server.openai.completions import create_completion
from allmetal.server.openai.models import list_models, show_model
from allmetal.server.openai.responses.create import create_response
from allmetal.server.openai.responses.lookup import cancel, delete, list_input_items, retrieve


def routes() -> list[BaseRoute]:
    return [
        Route("/v1/completions", create_completion, methods=["POST"]),
        Route("/v1/chat/completions", create_chat_completion, methods=["POST"]),
        Route("/v1/responses", create_response, methods=["POST"]),
        Route("/v1/responses/{id}", retrieve),
        Route("/v1/responses/{id}", delete, methods=["DELETE"]),
        Route("/v1/responses/{id}/cancel", cancel, methods=["POST"]),
        Route("/v1/responses/{id}/input_items", list_input_items),
        Route("/v1/models", list_models),
        Route("/v1/models/{name:path}", show_model),
    ]
