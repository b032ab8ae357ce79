"""A conversation in Anthropic's blocks as one in OpenAI's messages, which templates know."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from allmetal.errors import RequestError
from allmetal.server.anthropic.protocol import ConversationBody, Tool

Json = dict[str, Any]


def messages_of(body: ConversationBody) -> tuple[list[Json], str]:
    """The conversation, and what the model is to go on from: the text of an assistant's message
    at the end, as this API has it.  Raises RequestError naming the block that cannot be had."""
    messages: list[Json] = []
    if body.system is not None and (system := _text("system", body.system)):
        messages.append({"role": "system", "content": system})
    for index, message in enumerate(body.messages):
        messages += _message(f"messages[{index}]", message)
    if not messages or messages[-1]["role"] != "assistant":
        return messages, ""
    last = messages.pop()
    if last.keys() != {"role", "content"}:
        raise RequestError(
            "a message of the assistant's at the end may only hold text, which is gone on from",
            hint="add the results of its tools, or what the user says to it",
        )
    begun: str = last["content"]
    if begun != begun.rstrip():
        raise RequestError(
            "a message of the assistant's at the end must not end in white space",
            hint="the model writes it",
        )
    return messages, begun


def tools_of(tools: Sequence[Tool]) -> list[Json]:
    found = []
    for index, tool in enumerate(tools):
        if tool.type not in (None, "custom") or tool.input_schema is None:
            raise RequestError(
                f"tools[{index}] ({tool.name}) is none that this server can offer",
                hint="give tools of your own: a name, a description and an input_schema",
            )
        function = {
            "name": tool.name,
            **({"description": tool.description} if tool.description else {}),
            "parameters": tool.input_schema,
        }
        found.append({"type": "function", "function": function})
    return found


def _message(where: str, message: Mapping[str, Any]) -> list[Json]:
    role, content = message.get("role"), message.get("content")
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
    if not isinstance(blocks, list):
        raise RequestError(f"{where}.content must be a text or a list of blocks")
    named = [(f"{where}.content[{i}]", _checked(where, i, b)) for i, b in enumerate(blocks)]
    if role == "user":
        return _user(named)
    if role == "assistant":
        return [_assistant(named)]
    if role == "system":
        return [{"role": "system", "content": _text(f"{where}.content", blocks)}]
    raise RequestError(f"{where}.role must be user or assistant, not {role!r}")


def _user(blocks: Sequence[tuple[str, Json]]) -> list[Json]:
    """Results of tools come first, each a message of its own, as OpenAI has them."""
    results, texts = [], []
    for where, block in blocks:
        match block["type"]:
            case "text":
                texts.append(_field(where, block, "text"))
            case "tool_result":
                content = _text(f"{where}.content", block.get("content") or "")
                if block.get("is_error"):
                    content = f"Error: {content}"
                call_id = _field(where, block, "tool_use_id")
                results.append({"role": "tool", "tool_call_id": call_id, "content": content})
            case kind:
                raise _unsupported(where, kind)
    said = [{"role": "user", "content": "\n".join(texts)}] if texts or not results else []
    return [*results, *said]


def _assistant(blocks: Sequence[tuple[str, Json]]) -> Json:
    texts, thoughts, calls = [], [], []
    for where, block in blocks:
        match block["type"]:
            case "text":
                texts.append(_field(where, block, "text"))
            case "thinking":
                thoughts.append(_field(where, block, "thinking"))
            case "redacted_thinking":  # nobody here can read it
                pass
            case "tool_use":
                arguments = block.get("input", {})
                if not isinstance(arguments, dict):
                    raise RequestError(f"{where}.input must be an object")
                name, call_id = _field(where, block, "name"), _field(where, block, "id")
                function = {"name": name, "arguments": json.dumps(arguments, ensure_ascii=False)}
                calls.append({"id": call_id, "type": "function", "function": function})
            case kind:
                raise _unsupported(where, kind)
    return {
        "role": "assistant",
        "content": "\n".join(texts),
        **({"reasoning_content": "\n".join(thoughts)} if thoughts else {}),
        **({"tool_calls": calls} if calls else {}),
    }


def _text(where: str, content: object) -> str:
    """A text, or blocks of text only."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise RequestError(f"{where} must be a text or a list of text blocks")
    texts = []
    for index, each in enumerate(content):
        block = _checked(where, index, each)
        if block["type"] != "text":
            raise _unsupported(f"{where}[{index}]", block["type"])
        texts.append(_field(f"{where}[{index}]", block, "text"))
    return "\n".join(texts)


def _checked(where: str, index: int, block: object) -> Json:
    if not isinstance(block, dict) or not isinstance(block.get("type"), str):
        raise RequestError(f"{where}: block {index} must be an object with a type")
    return block


def _field(where: str, block: Mapping[str, Any], name: str) -> str:
    value = block.get(name)
    if not isinstance(value, str):
        raise RequestError(f"{where}.{name} must be a text")
    return value


def _unsupported(where: str, kind: str) -> RequestError:
    return RequestError(f"{where}: blocks of type {kind} are not supported here")
