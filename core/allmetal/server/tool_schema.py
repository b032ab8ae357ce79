"""Tools as a request offers them, and the schema of an output that calls them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from allmetal.errors import RequestError

_MOST_TOOLS = 1024
_CHOICES = ("none", "auto", "required")


def check_tools(tools: Sequence[Mapping[str, Any]], choice: object) -> None:
    """Raises RequestError naming what is wrong."""
    if len(tools) > _MOST_TOOLS:
        raise RequestError(f"{len(tools)} tools are more than {_MOST_TOOLS}")
    names = [_name(f"tools[{index}]", tool) for index, tool in enumerate(tools)]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise RequestError(f"two tools are called {twice}", hint="give each a name of its own")
    if isinstance(choice, str):
        if choice not in _CHOICES:
            raise RequestError(f"tool_choice {choice!r} is none", hint=f"one of {_CHOICES}")
        if choice == "required" and not tools:
            raise RequestError('tool_choice is "required" and there are no tools')
        return
    name = _named(choice)
    if name not in names:
        raise RequestError(
            f"tool_choice names {name!r}, which is not among the tools",
            hint=f"one of {', '.join(names) or 'none, as there are no tools'}",
        )


def chosen_tools(tools: Sequence[Mapping[str, Any]], choice: object) -> Sequence[Mapping[str, Any]]:
    """Those that may be called; `choice` has been checked."""
    if choice == "none":
        return ()
    if isinstance(choice, str):
        return tools
    return [tool for tool in tools if tool["function"]["name"] == _named(choice)]


def schema_of_calls(tools: Sequence[Mapping[str, Any]], *, parallel: bool) -> dict[str, Any]:
    """Of a JSON list of calls, each with a tool's name and what its schema says."""
    definitions: dict[str, Any] = {}
    calls = []
    for index, tool in enumerate(tools):
        function = tool["function"]
        parameters = function.get("parameters") or {"type": "object"}
        if "$ref" in str(parameters):  # its references start from its own beginning
            place = f"tool{index}"
            definitions[place] = _moved(parameters, f"#/$defs/{place}")
            parameters = {"$ref": f"#/$defs/{place}"}
        calls.append(
            {
                "type": "object",
                "properties": {"name": {"const": function["name"]}, "parameters": parameters},
                "required": ["name", "parameters"],
                "additionalProperties": False,
            }
        )
    schema: dict[str, Any] = {
        "type": "array",
        "minItems": 1,
        "items": calls[0] if len(calls) == 1 else {"anyOf": calls},
    }
    if not parallel:
        schema["maxItems"] = 1
    return {**schema, "$defs": definitions} if definitions else schema


def _moved(schema: Any, root: str) -> Any:
    """The schema with references from `root` on."""
    if isinstance(schema, list):
        return [_moved(each, root) for each in schema]
    if not isinstance(schema, Mapping):
        return schema
    return {
        key: root + value[1:]
        if key == "$ref" and isinstance(value, str) and value.startswith("#")
        else _moved(value, root)
        for key, value in schema.items()
    }


def _name(where: str, tool: object) -> str:
    function = tool.get("function") if isinstance(tool, Mapping) else None
    kind = tool.get("type") if isinstance(tool, Mapping) else None
    if kind != "function" or not isinstance(function, Mapping):
        raise RequestError(
            f"{where} is no function", hint='{"type": "function", "function": {"name": ..}}'
        )
    name = function.get("name")
    if not isinstance(name, str) or not name:
        raise RequestError(f"{where}.function.name must be a text that is not empty")
    if not isinstance(function.get("parameters", {}), Mapping | None):
        raise RequestError(f"{where}.function.parameters must be a JSON schema")
    return name


def _named(choice: object) -> str:
    function = choice.get("function") if isinstance(choice, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(name, str):
        raise RequestError(
            "tool_choice names no function",
            hint='{"type": "function", "function": {"name": ..}}, or one of ' + ", ".join(_CHOICES),
        )
    return name
