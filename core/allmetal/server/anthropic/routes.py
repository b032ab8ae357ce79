"""The paths of the Messages API."""

from __future__ import annotations

from starlette.routing import BaseRoute, Route

from allmetal.server.anthropic.create import count_tokens, create_message


def routes() -> list[BaseRoute]:
    return [
        Route("/v1/messages", create_message, methods=["POST"]),
        Route("/v1/messages/count_tokens", count_tokens, methods=["POST"]),
    ]
