"""A message in Anthropic's blocks, and the events by which it grows."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from allmetal.parsing import (
    ContentDelta,
    ReasoningDelta,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
)
from allmetal.server.dialogue import Begun, Ended, Part
from allmetal.server.errors import AbortedError

Json = dict[str, Any]


class MessageWriter:
    """Takes the parts of a turn; `message` is what they have made so far."""

    def __init__(self, message_id: str, model: str, stop_sequences: Sequence[str]) -> None:
        self._stop_sequences = stop_sequences
        self._open: Json | None = None  # the last block of the content, while it grows
        self._arguments = ""
        self._content: list[Json] = []
        self.message: Json = {
            "id": message_id,
            "type": "message",
            "role": "assistant",
            "model": model,
            "content": self._content,
            "stop_reason": None,
            "stop_sequence": None,
            "usage": {},
        }

    def take(self, part: Part) -> Iterator[Json]:
        """The events of a part.  Raises AbortedError where the turn was aborted."""
        match part:
            case Begun():
                self.message["usage"] = _usage(part.num_prompt, part.num_cached, 0)
                yield {"type": "message_start", "message": {**self.message, "content": []}}
            case ReasoningDelta(text):
                if self._kind != "thinking":
                    yield from self._start({"type": "thinking", "thinking": "", "signature": ""})
                yield from self._grow("thinking", text, "thinking_delta")
            case ContentDelta(text):
                if self._kind != "text":
                    yield from self._start({"type": "text", "text": ""})
                yield from self._grow("text", text, "text_delta")
            case ToolCallStart(_, call_id, name):
                start = {"type": "tool_use", "id": call_id, "name": name, "input": {}}
                yield from self._start(start)
                self._arguments = ""
            case ToolCallArguments(_, text):
                self._arguments += text
                yield self._delta({"type": "input_json_delta", "partial_json": text})
            case ToolCallEnd():
                yield from self._stop()
            case Ended():
                yield from self._end(part)

    @property
    def _kind(self) -> str | None:
        return None if self._open is None else self._open["type"]

    def _start(self, block: Json) -> Iterator[Json]:
        yield from self._stop()
        index = len(self._content)
        self._content.append(block)
        self._open = block
        yield {"type": "content_block_start", "index": index, "content_block": {**block}}

    def _grow(self, field: str, text: str, kind: str) -> Iterator[Json]:
        assert self._open is not None
        self._open[field] += text
        yield self._delta({"type": kind, field: text})

    def _delta(self, delta: Json) -> Json:
        index = len(self._content) - 1
        return {"type": "content_block_delta", "index": index, "delta": delta}

    def _stop(self) -> Iterator[Json]:
        if self._open is None:
            return
        if self._open["type"] == "tool_use":
            self._open["input"] = _object(self._arguments)
        self._open = None
        yield {"type": "content_block_stop", "index": len(self._content) - 1}

    def _end(self, end: Ended) -> Iterator[Json]:
        if end.finish_reason == "abort":
            raise AbortedError("the request was aborted")
        yield from self._stop()
        reason, sequence = self._reason(end)
        usage = _usage(end.num_prompt, end.num_cached, end.num_output)
        self.message |= {"stop_reason": reason, "stop_sequence": sequence, "usage": usage}
        delta = {"stop_reason": reason, "stop_sequence": sequence}
        yield {"type": "message_delta", "delta": delta, "usage": usage}
        yield {"type": "message_stop"}

    def _reason(self, end: Ended) -> tuple[str, str | None]:
        if end.finish_reason == "length":
            return "max_tokens", None
        if isinstance(end.stop_reason, str) and end.stop_reason in self._stop_sequences:
            return "stop_sequence", end.stop_reason
        return ("tool_use" if end.message.tool_calls else "end_turn"), None


def _usage(num_prompt: int, num_cached: int, num_output: int) -> Json:
    """The three kinds of input tokens are apart: their sum is the prompt."""
    return {
        "input_tokens": num_prompt - num_cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": num_cached,
        "output_tokens": num_output,
    }


def _object(text: str) -> Json:
    """Arguments that were broken off are no object; what came is in the stream."""
    try:
        value = json.loads(text)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
