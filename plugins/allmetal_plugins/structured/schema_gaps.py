"""What xgrammar passes over in a JSON schema, found out by giving it outputs that break a rule.

An output that silently lacks what its schema asks for is worse than none, so such schemas are left
to another provider, or refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import combinations
from typing import Any

_IGNORED = (
    "not",
    "if",
    "dependentRequired",
    "dependentSchemas",
    "dependencies",
    "$dynamicRef",
    "$recursiveRef",
)
_FORMATS = frozenset(
    {"date", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "time", "uri", "uuid"}
)
_OF_TEXTS = ("pattern", "format")
_LENGTHS = ("minLength", "maxLength")
_NEED_TYPE = (*_LENGTHS, *_OF_TEXTS, "minimum", "maximum", "multipleOf", "minItems", "maxItems")
_JOINS = ("anyOf", "oneOf", "allOf", "$ref")
_NOTES = frozenset(
    {"$defs", "$id", "$schema", "$comment", "definitions", "default", "deprecated", "description"}
    | {"discriminator", "examples", "nullable", "readOnly", "title", "type", "writeOnly"}
)
"""Keys that say nothing about which outputs are right, and `type`, where branches repeat it."""
_MOST_REFERENCES = 16
_KINDS: Mapping[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "object": (dict,),
    "array": (list,),
    "null": (type(None),),
}


def gap(schema: object) -> str:
    """The first thing in a schema that would be passed over; empty if there is none."""
    return next(_gaps(schema, schema), "")


def _gaps(schema: object, root: object) -> Iterator[str]:
    if not isinstance(schema, Mapping):
        return
    yield from _own(schema)
    yield from _one_of(schema, root)
    for key, value in schema.items():
        if key in ("properties", "patternProperties", "$defs", "definitions"):
            for each in value.values() if isinstance(value, Mapping) else ():
                yield from _gaps(each, root)
        elif key in ("anyOf", "oneOf", "allOf", "prefixItems", "items") and isinstance(value, list):
            for each in value:
                yield from _gaps(each, root)
        elif key not in ("enum", "const", "default", "examples"):
            yield from _gaps(value, root)


def _own(schema: Mapping[str, Any]) -> Iterator[str]:
    for key in _IGNORED:
        if key in schema:
            yield f"it does not know {key}"
    if schema.get("uniqueItems") is True:
        yield "it does not know uniqueItems"
    form = schema.get("format")
    if form is not None and form not in _FORMATS:
        yield f"it does not know the format {form}"
    if any(k in schema for k in _OF_TEXTS) and any(k in schema for k in _LENGTHS):
        yield "it takes either a pattern or format, or a length"
    if "pattern" in schema and "format" in schema:
        yield "it takes either a pattern or a format"
    if not {"type", "enum", "const"} & schema.keys() and any(k in schema for k in _NEED_TYPE):
        yield "it needs a type beside a bound"
    properties, required = schema.get("properties", {}), schema.get("required", [])
    if isinstance(required, list) and isinstance(properties, Mapping):
        for name in required:
            if name not in properties:
                yield f"it does not know a required property that is not described ({name})"
    yield from _joins(schema)
    yield from _values(schema)


def _joins(schema: Mapping[str, Any]) -> Iterator[str]:
    """Of schemas that are joined it looks at one, and at nothing beside it."""
    joined = [key for key in _JOINS if key in schema]
    if not joined:
        return
    branches = schema.get("allOf")
    if isinstance(branches, list) and len(branches) > 1:
        yield "it does not join the schemas of allOf"
    beside = [key for key in schema if key not in _NOTES and key != joined[0]]
    if beside:
        yield f"it does not look at {beside[0]} beside {joined[0]}"


def _one_of(schema: Mapping[str, Any], root: object) -> Iterator[str]:
    branches = schema.get("oneOf")
    if isinstance(branches, list):
        found = [_followed(branch, root) for branch in branches]
        if not all(_disjoint(a, b) for a, b in combinations(found, 2)):
            yield "it takes oneOf as anyOf, and more than one of these may hold"


def _disjoint(a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
    """Whether surely nothing is right by both."""
    types = [_types(each) for each in (a, b)]
    if all(types) and not types[0] & types[1]:
        return True
    properties = [each.get("properties") or {} for each in (a, b)]
    if not all(isinstance(each, Mapping) for each in properties):
        return False
    for name in properties[0].keys() & properties[1].keys():
        values = [_constants(each[name]) for each in properties]
        demanded = all(name in each.get("required", ()) for each in (a, b))
        if demanded and all(values) and not values[0] & values[1]:
            return True
    # What is not described may not come, unless a schema says that it may.
    for one, other in ((a, b), (b, a)):
        known = other.get("properties") or {}
        if not other.get("additionalProperties") and set(one.get("required", ())) - known.keys():
            return True
    return False


def _types(schema: Mapping[str, Any]) -> set[str]:
    stated = schema.get("type")
    found = {stated} if isinstance(stated, str) else set(stated or ())
    return found | ({"integer"} if "number" in found else set())


def _constants(schema: object) -> set[str]:
    if not isinstance(schema, Mapping):
        return set()
    values = schema.get("enum", [schema["const"]] if "const" in schema else [])
    return {repr(value) for value in values}


def _followed(schema: object, root: object) -> Mapping[str, Any]:
    """What a reference within the document refers to."""
    for _ in range(_MOST_REFERENCES):
        reference = schema.get("$ref") if isinstance(schema, Mapping) else None
        if not isinstance(reference, str) or not reference.startswith("#/"):
            break
        found: Any = root
        for part in reference[2:].split("/"):
            found = found.get(part) if isinstance(found, Mapping) else None
        schema = found
    return schema if isinstance(schema, Mapping) else {}


def _values(schema: Mapping[str, Any]) -> Iterator[str]:
    """Values that the rest of the schema does not allow would come all the same."""
    values = schema.get("enum", [schema["const"]] if "const" in schema else [])
    stated = schema.get("type")
    types = [stated] if isinstance(stated, str) else stated if isinstance(stated, list) else []
    if values and types and isinstance(values, list):
        kinds = {kind for name in types for kind in _KINDS.get(name, ())}
        if any(type(value) not in kinds for value in values):
            yield "it does not hold an enum's values against the type beside it"
    if values and any(key in schema for key in _NEED_TYPE):
        yield "it does not hold an enum's values against the bounds beside it"
