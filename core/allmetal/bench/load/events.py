"""Server-sent events of an OpenAI-style answer, out of bytes as they come."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

_DATA = b"data:"
_DONE = b"[DONE]"


class Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0


class Delta(msgspec.Struct):
    role: str | None = None
    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: Any = None

    @property
    def opens(self) -> bool:
        """Whether it only says who speaks: some servers send that before they compute."""
        said = self.content or self.reasoning or self.reasoning_content or self.tool_calls
        return self.role is not None and not said


class Choice(msgspec.Struct):
    delta: Delta | None = None
    finish_reason: str | None = None


class Event(msgspec.Struct):
    choices: list[Choice] = []  # msgspec copies it
    usage: Usage | None = None
    error: Any = None

    @property
    def has_piece(self) -> bool:
        """Whether it brings a part of the answer, be its text empty."""
        if not self.choices:
            return False
        first = self.choices[0]
        return first.delta is None or not first.delta.opens or first.finish_reason is not None


class EventReader:
    """Cuts bytes into events; `done` after `[DONE]`.  Raises msgspec.DecodeError."""

    def __init__(self) -> None:
        self.done = False
        self._rest = b""
        self._decode = msgspec.json.Decoder(Event).decode

    def feed(self, data: bytes) -> Iterator[Event]:
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            if not line.startswith(_DATA):
                continue  # a comment that keeps the connection, or the end of an event
            body = line[len(_DATA) :].strip()
            if body == _DONE:
                self.done = True
            else:
                yield self._decode(body)
