"""Request bodies, typed.  A null field means the same as an absent one.

What is not supported is refused by name rather than ignored: an answer that silently lacks what
was asked for is worse than none.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from typing import Annotated, Any, ClassVar, TypeVar

import msgspec

from allmetal.errors import RequestError

# What crosses to the engine has 64 bits.
Int = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
# Each is a token with its number, at every position; the vocabulary has hundreds of thousands.
Entries = Annotated[int, msgspec.Meta(le=100)]


class Body(msgspec.Struct, kw_only=True):
    """Base of all bodies."""

    # Accepted and without effect here: they are for the caller's or the vendor's books.
    inert: ClassVar[frozenset[str]] = frozenset()
    # Known fields that cannot be had, unless they hold one of these values, which ask for nothing.
    refused: ClassVar[Mapping[str, tuple[object, ...]]] = {}


AnyBody = TypeVar("AnyBody", bound=Body)


Handler = TypeVar("Handler", bound=Callable[..., Any])


def takes(kind: type[Body]) -> Callable[[Handler], Handler]:
    """Says of a handler what its body is, for the OpenAPI document."""

    def mark(handler: Handler) -> Handler:
        vars(handler)["body"] = kind
        return handler

    return mark


def body_of_handler(handler: Any) -> type[Body] | None:
    """What `takes` said."""
    found: type[Body] | None = getattr(handler, "body", None)
    return found


def decode(raw: bytes, kind: type[AnyBody]) -> AnyBody:
    """A request body.  Raises RequestError naming the field that is wrong."""
    try:
        fields = msgspec.json.decode(raw)
    except msgspec.DecodeError as error:
        raise RequestError(f"the body is not JSON: {error}") from None
    except RecursionError:
        raise RequestError("the body is nested too deeply") from None
    return convert(fields, kind)


def convert(fields: Any, kind: type[AnyBody]) -> AnyBody:
    """As `decode`, of what was decoded already."""
    if not isinstance(fields, dict):
        raise RequestError("the body must be a JSON object")
    fields = {name: value for name, value in fields.items() if value is not None}
    _check_names(fields, kind)
    try:
        return msgspec.convert(fields, kind, str_keys=True)
    except msgspec.ValidationError as error:
        raise RequestError(_readable(str(error))) from None


def _check_names(fields: Mapping[str, object], kind: type[Body]) -> None:
    known = set(kind.__struct_fields__)
    for name, value in fields.items():
        if name in known or name in kind.inert:
            continue
        if name in kind.refused:
            if value in kind.refused[name]:
                continue
            raise RequestError(f"{name} is not supported", hint=f"leave {name} out")
        close = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {close[0]}?" if close else "leave it out"
        raise RequestError(f"there is no parameter {name}", hint=hint)


def _readable(message: str) -> str:
    """msgspec's "Expected `int`, got `str` - at `$.seed`" with the field first."""
    what, at, path = message.partition(" - at `$")
    if not at:
        return message
    return f"{path.rstrip('`').lstrip('.')}: {what[0].lower()}{what[1:]}"
