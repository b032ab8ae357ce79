"""Messages of a conversation, checked and made plain for a chat template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from allmetal.errors import RequestError


def plain_messages(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Messages whose content is one text.  Raises RequestError naming the message."""
    if not messages:
        raise RequestError("messages is empty", hint="give at least one message")
    return [_plain(f"messages[{index}]", message) for index, message in enumerate(messages)]


def _plain(where: str, message: Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(message.get("role"), str):
        raise RequestError(f"{where}.role must be a text such as user, assistant or system")
    content = message.get("content")
    if isinstance(content, list):
        parts = [_text(f"{where}.content[{i}]", part) for i, part in enumerate(content)]
        return {**message, "content": "\n".join(parts)}
    if isinstance(content, str) or (content is None and message["role"] == "assistant"):
        return dict(message)
    raise RequestError(f"{where}.content must be a text or a list of parts")


def _text(where: str, part: object) -> str:
    if (
        isinstance(part, Mapping)
        and part.get("type") == "text"
        and isinstance(part.get("text"), str)
    ):
        return str(part["text"])
    kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
    raise RequestError(
        f"{where}: parts of type {kind} are not supported", hint="this server takes text"
    )
