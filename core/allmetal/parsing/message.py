"""Events put together: a message as it has become."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from allmetal.parsing.contract import (
    ContentDelta,
    Event,
    ReasoningDelta,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
)


@dataclass(slots=True, kw_only=True)
class ToolCall:
    """`arguments` is the text of a JSON object once `complete`, a beginning of one before."""

    id: str
    name: str
    arguments: str = ""
    complete: bool = False


@dataclass(slots=True)
class Message:
    reasoning: str = ""
    content: str = ""
    tool_calls: list[ToolCall] = field(default_factory=list)

    def add(self, events: Iterable[Event]) -> None:
        for event in events:
            match event:
                case ReasoningDelta(text):
                    self.reasoning += text
                case ContentDelta(text):
                    self.content += text
                case ToolCallStart(_, call_id, name):
                    self.tool_calls.append(ToolCall(id=call_id, name=name))
                case ToolCallArguments(index, text):
                    self.tool_calls[index].arguments += text
                case ToolCallEnd(index):
                    self.tool_calls[index].complete = True


def collect(events: Iterable[Event]) -> Message:
    message = Message()
    message.add(events)
    return message
