"""Messages of a conversation, checked and made plain for a chat template."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from allmetal.errors import RequestError

_SAID_ELSEWHERE = frozenset({"self", "messages", "tools", "add_generation_prompt"})


def for_template(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Messages whose content is one text and whose calls' arguments are objects.

    Raises RequestError naming the message.
    """
    if not messages:
        raise RequestError("messages is empty", hint="give at least one message")
    return [_plain(f"messages[{index}]", message) for index, message in enumerate(messages)]


def template_arguments(given: Mapping[str, Any] | None) -> dict[str, Any]:
    """A body's `chat_template_kwargs`.  Raises RequestError for what the body says elsewhere, and
    for a template: it is a program, which might run for as long as it likes."""
    for name in given or ():
        if name == "chat_template":
            raise RequestError(
                "a request cannot bring a chat template",
                hint="start the server with --chat-template FILE",
            )
        if name in _SAID_ELSEWHERE:
            raise RequestError(
                f"chat_template_kwargs: {name} has a place of its own in the body",
                hint=f"leave {name} out of chat_template_kwargs",
            )
    return dict(given or {})


def _plain(where: str, message: Mapping[str, Any]) -> dict[str, Any]:
    role = message.get("role")
    if not isinstance(role, str):
        raise RequestError(f"{where}.role must be a text such as user, assistant or system")
    made = dict(message)
    calls = made.pop("tool_calls", None)
    if calls:
        made["tool_calls"] = _calls(where, calls)
    content = message.get("content")
    if isinstance(content, list):
        parts = [_text(f"{where}.content[{i}]", part) for i, part in enumerate(content)]
        made["content"] = "\n".join(parts)
    elif content is None and role == "assistant":
        made["content"] = ""
    elif not isinstance(content, str):
        raise RequestError(f"{where}.content must be a text or a list of parts")
    for one, other in (("reasoning_content", "reasoning"), ("reasoning", "reasoning_content")):
        if isinstance(message.get(one), str) and message.get(other) is None:
            made[other] = message[one]  # templates know it by either name
    return made


def _calls(where: str, calls: object) -> list[dict[str, Any]]:
    if not isinstance(calls, list):
        raise RequestError(f"{where}.tool_calls must be a list")
    return [_call(f"{where}.tool_calls[{index}]", call) for index, call in enumerate(calls)]


def _call(where: str, call: object) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(call, Mapping) or not isinstance(function, Mapping):
        raise RequestError(f"{where} must have a function with a name and arguments")
    if not isinstance(function.get("name"), str):
        raise RequestError(f"{where}.function.name must be a text")
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments or "{}")
        except (ValueError, RecursionError):
            raise RequestError(f"{where}.function.arguments is not JSON") from None
    if arguments is None:
        arguments = {}
    if not isinstance(arguments, Mapping):
        raise RequestError(f"{where}.function.arguments must be a JSON object")
    return {**call, "type": "function", "function": {**function, "arguments": dict(arguments)}}


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
