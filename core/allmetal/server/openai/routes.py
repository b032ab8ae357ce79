"""The paths of the OpenAI API."""

from __future__ import annotations

from starlette.routing import BaseRoute, Route

from allmetal.server.openai.chat import create_chat_completion
from allmetal.server.openai.completions import create_completion
from allmetal.server.openai.models import list_models, show_model


def routes() -> list[BaseRoute]:
    return [
        Route("/v1/completions", create_completion, methods=["POST"]),
        Route("/v1/chat/completions", create_chat_completion, methods=["POST"]),
        Route("/v1/models", list_models),
        Route("/v1/models/{name:path}", show_model),
    ]
