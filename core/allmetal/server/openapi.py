"""The OpenAPI document of what is served, made of the routes and of the types of their bodies.

Source: https://spec.openapis.org/oas/v3.1.0
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Sequence
from typing import Any

import msgspec
from starlette.routing import BaseRoute, Route

from allmetal import __version__
from allmetal.server.bodies import Body, body_of_handler

_REFERENCE = "#/components/schemas/{name}"
_ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
                "hint": {"type": "string", "description": "what may help"},
                "request_id": {"type": "string"},
            },
        }
    },
}


def describe(routes: Sequence[BaseRoute]) -> dict[str, Any]:
    """The document, as JSON can be made of it."""
    paths: dict[str, dict[str, Any]] = {}
    bodies: list[type[Body]] = []
    for route in routes:
        if not isinstance(route, Route):
            continue
        body = body_of_handler(route.endpoint)
        if body is not None:
            bodies.append(body)
        path = paths.setdefault(re.sub(r":\w+}", "}", route.path), {})
        for method in sorted((route.methods or set()) - {"HEAD"}):
            path[method.lower()] = _operation(route, body)
    _, schemas = msgspec.json.schema_components(dict.fromkeys(bodies), ref_template=_REFERENCE)
    for kind in dict.fromkeys(bodies):
        _close(schemas[kind.__name__], kind)
    return {
        "openapi": "3.1.0",
        "info": {"title": "allmetal", "version": __version__},
        "paths": paths,
        "components": {
            "schemas": {**schemas, "Error": _ERROR},
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"key": []}],
    }


def _operation(route: Route, body: type[Body] | None) -> dict[str, Any]:
    error = {"application/json": {"schema": {"$ref": _REFERENCE.format(name="Error")}}}
    answers: dict[str, Any] = {"application/json": {}}
    if body is not None and "stream" in body.__struct_fields__:
        answers["text/event-stream"] = {}
    operation: dict[str, Any] = {
        "operationId": f"{route.name}_{re.sub(r'[^a-z0-9]+', '_', route.path.lower()).strip('_')}",
        "responses": {
            "200": {"description": "done", "content": answers},
            "default": {"description": "it was not done, and why", "content": error},
        },
    }
    if doc := inspect.getdoc(route.endpoint):
        operation["summary"] = doc.splitlines()[0]
    if route.param_convertors:
        operation["parameters"] = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
            for name in route.param_convertors
        ]
    if body is not None:
        schema = {"$ref": _REFERENCE.format(name=body.__name__)}
        content = {"application/json": {"schema": schema}}
        operation["requestBody"] = {"required": True, "content": content}
    return operation


def _close(schema: dict[str, Any], kind: type[Body]) -> None:
    """Other names are refused, but for those that do nothing."""
    schema["properties"] |= {name: {} for name in sorted(kind.inert)}
    schema["additionalProperties"] = False
