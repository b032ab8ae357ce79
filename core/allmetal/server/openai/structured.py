"""What a body demands of its output's form, by each of the names that the field has for it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from allmetal.constraint import StructuredOutput
from allmetal.errors import RequestError
from allmetal.server.openai.protocol import CommonRequest, StructuredOutputs

_FORMATS = "text, json_object, json_schema or structural_tag"


def structured_of(body: CommonRequest) -> StructuredOutput | None:
    """Raises RequestError if more than one form is demanded, or one that is none."""
    found = [
        each
        for each in (
            _from_format(body.response_format),
            _from_structured(body.structured_outputs),
            _from_guided(body),
        )
        if each is not None
    ]
    if len(found) > 1:
        raise RequestError(
            "more than one form of the output is demanded",
            hint="give one of response_format, structured_outputs and guided_*",
        )
    return found[0] if found else None


def _from_format(given: Mapping[str, Any] | None) -> StructuredOutput | None:
    if given is None:
        return None
    match given.get("type"):
        case "text":
            return None
        case "json_object":
            return StructuredOutput(json_object=True)
        case "json_schema":
            described = given.get("json_schema")
            schema = described.get("schema") if isinstance(described, Mapping) else None
            if not isinstance(schema, Mapping):
                raise RequestError(
                    "response_format.json_schema.schema must be a JSON schema",
                    hint='{"type": "json_schema", "json_schema": {"name": .., "schema": {..}}}',
                )
            return StructuredOutput(json=schema)
        case "structural_tag":
            return StructuredOutput(structural_tag=given)
        case kind:
            raise RequestError(f"response_format.type is {kind!r}", hint=f"one of {_FORMATS}")


def _from_structured(given: StructuredOutputs | None) -> StructuredOutput | None:
    if given is None:
        return None
    values = msgspec.structs.asdict(given)
    spread = not values.pop("disable_any_whitespace")
    values["json_object"] = bool(values["json_object"])
    return StructuredOutput(**values, any_whitespace=spread)


def _from_guided(body: CommonRequest) -> StructuredOutput | None:
    given = (body.guided_json, body.guided_regex, body.guided_choice, body.guided_grammar)
    if all(value is None for value in given):
        return None
    return StructuredOutput(
        json=body.guided_json,
        regex=body.guided_regex,
        choice=body.guided_choice,
        grammar=body.guided_grammar,
        provider=body.guided_decoding_backend,
    )
