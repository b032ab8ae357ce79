"""What a model wrote, told apart: reasoning, content, tool calls.  Formats are plugins."""

from __future__ import annotations

from allmetal.parsing.contract import (
    ContentDelta,
    Event,
    Markers,
    ParseContext,
    Parser,
    ParserSpec,
    ReasoningDelta,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
)
from allmetal.parsing.family import Family, family_for
from allmetal.parsing.message import Message, ToolCall, collect

__all__ = [
    "ContentDelta",
    "Event",
    "Family",
    "Markers",
    "Message",
    "ParseContext",
    "Parser",
    "ParserSpec",
    "ReasoningDelta",
    "ToolCall",
    "ToolCallArguments",
    "ToolCallEnd",
    "ToolCallStart",
    "collect",
    "family_for",
]
