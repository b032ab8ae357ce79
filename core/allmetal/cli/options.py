"""Command-line options made from config dataclasses: one flag a field, its doc as help.

Only what was typed lands in the namespace, so that defaults live in the dataclass alone.
"""

from __future__ import annotations

import argparse
import re
import types
from collections.abc import Callable, Collection, Mapping
from dataclasses import MISSING, Field, fields
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from allmetal.config import EngineConfig

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_BINARY = {"k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(?:([kmgt]?)(i?)b?)\s*", re.IGNORECASE)


def parse_bytes(text: str) -> int:
    """`2GiB`, `512MB`, `1.5g`, `4096`: a number of bytes."""
    match = _SIZE.fullmatch(text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size; write 2GiB, 512MB or bytes")
    number, unit, binary = match[1], match[2].lower(), match[3]
    if binary and not unit:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size; write 2GiB, 512MB or bytes")
    return int(float(number) * (_BINARY if binary else _UNITS)[unit])


def add_options(
    parser: argparse.ArgumentParser,
    config: type[Any],
    *,
    skip: Collection[str] = (),
    docs: Mapping[str, str] | None = None,
    defaults: Mapping[str, object] | None = None,
    group: str = "options",
) -> None:
    """A flag for each field of `config` that is not in `skip`.

    A field's metadata may hold doc, group, choices, metavar, and a `parse` for each time the flag
    is given (see `config.option`); `docs` says it for dataclasses without.  `defaults` are shown in
    the help where a command has its own.
    """
    hints = get_type_hints(config)
    groups: dict[str, argparse._ArgumentGroup] = {}
    for item in fields(config):
        if item.name in skip:
            continue
        title = item.metadata.get("group", group)
        if title not in groups:
            groups[title] = parser.add_argument_group(title)
        doc = (docs or {}).get(item.name) or item.metadata.get("doc", "")
        default = (defaults or {}).get(item.name, _default(item))
        groups[title].add_argument(
            "--" + item.name.replace("_", "-"),
            dest=item.name,
            default=argparse.SUPPRESS,
            help=_help(doc, default),
            **_argument(item, hints[item.name]),
        )


def given(args: argparse.Namespace, config: type[Any]) -> dict[str, Any]:
    """The fields of `config` that were typed, by name."""
    found = {}
    for item in fields(config):
        if not hasattr(args, item.name):
            continue
        value = getattr(args, item.name)
        if isinstance(value, list):
            pairs = all(isinstance(each, tuple) for each in value)
            value = dict(value) if pairs else tuple(value)
        found[item.name] = value
    return found


def engine_options(args: argparse.Namespace) -> dict[str, Any]:
    """The fields of EngineConfig that were typed.  Raises ConfigError before anything is loaded."""
    options = given(args, EngineConfig)
    EngineConfig(**options)
    return options


def _default(item: Field[Any]) -> object:
    if item.default is not MISSING:
        return item.default
    return None if item.default_factory is MISSING else item.default_factory()


def _help(doc: str, default: object) -> str:
    text = doc.replace("%", "%%")
    if default is None or "default:" in doc or (isinstance(default, Collection) and not default):
        return text
    shown = {True: "on", False: "off"}.get(default) if isinstance(default, bool) else default
    return f"{text} (default: {shown})"


def _argument(item: Field[Any], hint: Any) -> dict[str, Any]:
    """add_argument's keywords for one field."""
    metavar = item.metadata.get("metavar")
    if parse := item.metadata.get("parse"):
        return {"action": "append", "type": parse, "metavar": metavar}
    kind = _plain(hint)
    origin = get_origin(kind)
    if kind is bool:
        return {"action": argparse.BooleanOptionalAction}
    if origin is Literal:
        return {"choices": get_args(kind)}
    if choices := item.metadata.get("choices"):
        return {"choices": tuple(choices)}
    if isinstance(origin, type) and issubclass(origin, Mapping):
        key, value = get_args(kind)
        return {"action": "append", "type": _pair(key, value), "metavar": metavar or "KEY=VALUE"}
    if origin is tuple:
        return {"action": "append", "type": get_args(kind)[0], "metavar": metavar or "X"}
    if item.name.endswith(("_memory", "_bytes")):
        return {"type": parse_bytes, "metavar": metavar or "SIZE"}
    plain = {"type": kind, "metavar": metavar or {int: "N", float: "X"}.get(kind, "TEXT")}
    if (const := item.metadata.get("const")) is not None:
        return {**plain, "nargs": "?", "const": const}
    return plain


def _plain(hint: Any) -> Any:
    """`X | None` without the None."""
    if get_origin(hint) in (types.UnionType, Union):
        (hint,) = (arg for arg in get_args(hint) if arg is not types.NoneType)
    return hint


def _pair(key: Callable[[str], Any], value: Callable[[str], Any]) -> Callable[[str], Any]:
    def parse(text: str) -> tuple[Any, Any]:
        name, equals, rest = text.partition("=")
        try:
            if equals and name and rest:
                return key(name), value(rest)
        except ValueError:
            pass
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form KEY=VALUE")

    return parse
