"""A response in items, and the numbered events by which it grows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from allmetal.errors import AllmetalError
from allmetal.parsing import (
    ContentDelta,
    ReasoningDelta,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
)
from allmetal.server.dialogue import Begun, Ended, Part
from allmetal.server.errors import AbortedError
from allmetal.server.openai.responses.items import Json, new_id

_DELTAS = {"message": "response.output_text", "reasoning": "response.reasoning_text"}
_PARTS: dict[str, Json] = {
    "message": {"type": "output_text", "text": "", "annotations": []},
    "reasoning": {"type": "reasoning_text", "text": ""},
}


class ResponseWriter:
    """Takes the parts of a turn; `response` is what they have made so far."""

    def __init__(self, response: Json) -> None:
        self.response = response
        self._output: list[Json] = response["output"]
        self._open: Json | None = None  # the last item of the output, while it grows
        self._num_events = 0

    def queued(self) -> Iterator[Json]:
        yield self._event("response.queued", response=self._snapshot())

    def take(self, part: Part) -> Iterator[Json]:
        """The events of a part.  Raises AbortedError where the turn was aborted."""
        match part:
            case Begun():
                self.response["status"] = "in_progress"
                for name in ("created", "in_progress"):
                    yield self._event(f"response.{name}", response=self._snapshot())
            case ReasoningDelta(text):
                yield from self._say("reasoning", text)
            case ContentDelta(text):
                yield from self._say("message", text)
            case ToolCallStart(_, call_id, name):
                call = {"call_id": call_id, "name": name, "arguments": ""}
                yield from self._start("function_call", call)
            case ToolCallArguments(_, text):
                assert self._open is not None
                self._open["arguments"] += text
                yield self._on_item("response.function_call_arguments.delta", delta=text)
            case ToolCallEnd():
                yield from self._stop("completed")
            case Ended():
                yield from self._end(part)

    def fail(self, error: Exception) -> Iterator[Json]:
        message = error.message if isinstance(error, AllmetalError) else "internal error"
        yield from self._stop("incomplete")
        self.response["status"] = "failed"
        self.response["error"] = {"code": "server_error", "message": message}
        yield self._event("response.failed", response=self._snapshot())

    def cancel(self) -> None:
        for _ in self._stop("incomplete"):
            pass
        self.response["status"] = "cancelled"

    def _event(self, kind: str, **fields: Any) -> Json:
        number = self._num_events
        self._num_events += 1
        return {"type": kind, "sequence_number": number, **fields}

    def _on_item(self, kind: str, **fields: Any) -> Json:
        assert self._open is not None
        place = {"item_id": self._open["id"], "output_index": len(self._output) - 1}
        return self._event(kind, **place, **fields)

    def _snapshot(self) -> Json:
        return {**self.response, "output": list(self._output)}

    def _say(self, kind: str, text: str) -> Iterator[Json]:
        if self._open is None or self._open["type"] != kind:
            extra: Json = {"role": "assistant"} if kind == "message" else {"summary": []}
            yield from self._start(kind, {**extra, "content": []})
            part = {**_PARTS[kind]}
            yield self._on_item("response.content_part.added", content_index=0, part={**part})
            self._open["content"].append(part)  # type: ignore[index]
        assert self._open is not None
        self._open["content"][0]["text"] += text
        logprobs: Json = {"logprobs": []} if kind == "message" else {}
        yield self._on_item(f"{_DELTAS[kind]}.delta", content_index=0, delta=text, **logprobs)

    def _start(self, kind: str, fields: Json) -> Iterator[Json]:
        # A call that was begun is left only when its output broke off.
        yield from self._stop("completed")
        item = {"type": kind, "id": new_id(kind), "status": "in_progress", **fields}
        self._output.append(item)
        self._open = item
        shown = {**item, "content": []} if "content" in item else {**item}
        index = len(self._output) - 1
        yield self._event("response.output_item.added", output_index=index, item=shown)

    def _stop(self, status: str) -> Iterator[Json]:
        item = self._open
        if item is None:
            return
        item["status"] = status
        kind = item["type"]
        if kind == "function_call":
            name, arguments = item["name"], item["arguments"]
            done = "response.function_call_arguments.done"
            yield self._on_item(done, name=name, arguments=arguments)
        else:
            part = item["content"][0]
            logprobs: Json = {"logprobs": []} if kind == "message" else {}
            text = part["text"]
            yield self._on_item(f"{_DELTAS[kind]}.done", content_index=0, text=text, **logprobs)
            yield self._on_item("response.content_part.done", content_index=0, part=part)
        index = len(self._output) - 1
        yield self._event("response.output_item.done", output_index=index, item=item)
        self._open = None

    def _end(self, end: Ended) -> Iterator[Json]:
        if end.finish_reason == "abort":
            raise AbortedError("the request was aborted")
        whole = end.finish_reason == "stop"
        if not self._output and whole:  # nothing was said: that is an answer, too
            yield from self._say("message", "")
        yield from self._stop("completed" if whole else "incomplete")
        self.response["usage"] = _usage(end)
        status = "completed" if whole else "incomplete"
        self.response["status"] = status
        if not whole:
            self.response["incomplete_details"] = {"reason": "max_output_tokens"}
        yield self._event(f"response.{status}", response=self._snapshot())


def _usage(end: Ended) -> Json:
    return {
        "input_tokens": end.num_prompt,
        "input_tokens_details": {"cached_tokens": end.num_cached, "cache_write_tokens": 0},
        "output_tokens": end.num_output,
        "output_tokens_details": {"reasoning_tokens": end.num_reasoning},
        "total_tokens": end.num_prompt + end.num_output,
    }
