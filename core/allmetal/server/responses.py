"""Answers in JSON."""

from __future__ import annotations

import msgspec
from starlette.responses import Response


class JSON(Response):
    """Anything msgspec can write."""

    media_type = "application/json"

    def render(self, content: object) -> bytes:
        return msgspec.json.encode(content)
