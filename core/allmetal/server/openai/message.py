"""What a model said as messages and deltas of the chat API."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from allmetal.parsing import (
    ContentDelta,
    Event,
    Message,
    Parser,
    ReasoningDelta,
    ToolCallArguments,
    ToolCallStart,
)


class Said:
    """One choice so far."""

    def __init__(self, parser: Parser) -> None:
        self.message = Message()
        self._parser = parser

    def take(self, text: str, *, final: bool) -> list[Event]:
        """What more text makes certain."""
        events = self._parser.parse(text, final=final)
        self.message.add(events)
        return events


def message_of(said: Message) -> dict[str, Any]:
    """A whole message.  Beside calls an empty content is null."""
    made: dict[str, Any] = {"role": "assistant", "content": said.content}
    if said.reasoning:
        made["reasoning_content"] = said.reasoning
    if said.tool_calls:
        made["content"] = said.content or None
        made["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call in said.tool_calls
        ]
    return made


def delta_of(events: Iterable[Event]) -> dict[str, Any]:
    """What is new, as one delta."""
    message: dict[str, Any] = {}
    calls: dict[int, dict[str, Any]] = {}
    for event in events:
        match event:
            case ReasoningDelta(text):
                message["reasoning_content"] = message.get("reasoning_content", "") + text
            case ContentDelta(text):
                message["content"] = message.get("content", "") + text
            case ToolCallStart(index, call_id, name):
                function = {"name": name, "arguments": ""}
                calls[index] = {"index": index, "id": call_id, "type": "function"}
                calls[index]["function"] = function
            case ToolCallArguments(index, text):
                call = calls.setdefault(index, {"index": index, "function": {"arguments": ""}})
                call["function"]["arguments"] += text
    if calls:
        message["tool_calls"] = [calls[index] for index in sorted(calls)]
    return message
