"""Items of a conversation: checked, named, and as OpenAI's messages, which templates know."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from allmetal.errors import RequestError

Json = dict[str, Any]
_TEXTS = frozenset({"input_text", "output_text", "text", "reasoning_text", "summary_text"})
_PREFIX = {
    "message": "msg",
    "function_call": "fc",
    "function_call_output": "fco",
    "reasoning": "rs",
}
"""The kinds of items there are here -> how their ids begin."""


def new_id(kind: str) -> str:
    return f"{_PREFIX[kind]}_{uuid.uuid4().hex}"


def items_of(given: str | Sequence[Mapping[str, Any]]) -> list[Json]:
    """A request's input as whole items.  Raises RequestError naming what cannot be had."""
    if isinstance(given, str):
        return [_message({"role": "user", "content": given}, "input")]
    if not given:
        raise RequestError("input is empty", hint="give a text or at least one item")
    return [_item(item, f"input[{index}]") for index, item in enumerate(given)]


def _item(item: Mapping[str, Any], where: str) -> Json:
    kind = item.get("type", "message")
    match kind:
        case "message":
            return _message(item, where)
        case "function_call":
            fields = {name: _text(item, name, where) for name in ("call_id", "name", "arguments")}
            return {**_head(item, kind), **fields, "status": "completed"}
        case "function_call_output":
            output = _joined(item.get("output"), f"{where}.output")
            fields = {"call_id": _text(item, "call_id", where), "output": output}
            return {**_head(item, kind), **fields, "status": "completed"}
        case "reasoning":
            # A summary is what others return instead; better than nothing.
            said = item.get("content") or item.get("summary") or []
            text = _joined(said, f"{where}.content")
            content = [{"type": "reasoning_text", "text": text}] if text else []
            return {**_head(item, kind), "summary": [], "content": content}
        case _:
            raise RequestError(
                f"{where}: items of type {kind!r} are not supported",
                hint=f"this server takes {', '.join(_PREFIX)}",
            )


def _message(item: Mapping[str, Any], where: str) -> Json:
    role = item.get("role")
    if role not in ("user", "assistant", "system", "developer"):
        raise RequestError(
            f"{where}.role must be user, assistant, system or developer, not {role!r}"
        )
    text = _joined(item.get("content"), f"{where}.content")
    part: Json = {"type": "input_text", "text": text}
    if role == "assistant":
        part = {"type": "output_text", "text": text, "annotations": []}
    return {**_head(item, "message"), "role": role, "content": [part], "status": "completed"}


def _head(item: Mapping[str, Any], kind: str) -> Json:
    given = item.get("id")
    return {"type": kind, "id": given if isinstance(given, str) else new_id(kind)}


def _text(item: Mapping[str, Any], name: str, where: str) -> str:
    value = item.get(name)
    if not isinstance(value, str):
        raise RequestError(f"{where}.{name} must be a text")
    return value


def _joined(content: object, where: str) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise RequestError(f"{where} must be a text or a list of parts")
    texts = []
    for index, part in enumerate(content):
        if not isinstance(part, Mapping):
            raise RequestError(f"{where}[{index}] must be an object")
        kind = part.get("type")
        if kind not in _TEXTS and kind != "refusal":
            raise RequestError(
                f"{where}[{index}]: parts of type {kind} are not supported",
                hint="this server takes text",
            )
        texts.append(_text(part, "refusal" if kind == "refusal" else "text", f"{where}[{index}]"))
    return "\n".join(texts)


def messages_of(items: Sequence[Json], instructions: str | None) -> list[Json]:
    """Items of one assistant turn become one message, with its reasoning and its calls.

    Instructions join what the system says first: most templates know one system message.
    """
    messages: list[Json] = []
    for item in items:
        match item["type"]:
            case "message" if item["role"] == "assistant":
                turn = _turn(messages)
                turn["content"] = "\n".join(filter(None, (turn["content"], _said(item))))
            case "message":
                role = "system" if item["role"] == "developer" else item["role"]
                messages.append({"role": role, "content": _said(item)})
            case "function_call":
                function = {"name": item["name"], "arguments": item["arguments"]}
                call = {"id": item["call_id"], "type": "function", "function": function}
                _turn(messages).setdefault("tool_calls", []).append(call)
            case "function_call_output":
                result = {"role": "tool", "tool_call_id": item["call_id"]}
                messages.append({**result, "content": item["output"]})
            case "reasoning" if item["content"]:
                fresh = {"role": "assistant", "content": ""}
                messages.append({**fresh, "reasoning_content": item["content"][0]["text"]})
    if instructions:
        first = messages[0] if messages and messages[0]["role"] == "system" else None
        if first is not None:
            messages[0] = {**first, "content": f"{instructions}\n\n{first['content']}"}
        else:
            messages.insert(0, {"role": "system", "content": instructions})
    return messages


def _turn(messages: list[Json]) -> Json:
    """The assistant's message that is being put together."""
    if not messages or messages[-1]["role"] != "assistant":
        messages.append({"role": "assistant", "content": ""})
    return messages[-1]


def _said(item: Json) -> str:
    return "\n".join(part["text"] for part in item["content"])
