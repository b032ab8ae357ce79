"""What an output must look like, and what a model's thoughts may take.  Plain data, no torch."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from allmetal.errors import RequestError

Kind: TypeAlias = Literal["json", "regex", "grammar", "choice", "structural_tag"]
LARGEST_SOURCE = 1 << 18
"""Characters of a schema, pattern or grammar."""
_HINT = "see docs/structured-output.md"


@dataclass(frozen=True, slots=True)
class Constraint:
    """What is compiled: hashable, so that equal ones are compiled once.

    `source` is JSON for json, choice (a list) and structural_tag.
    """

    kind: Kind
    source: str
    any_whitespace: bool = True
    provider: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StructuredOutput:
    """What an output must look like; exactly one of the first six.

    `json`: a JSON schema.  `json_object`: any JSON object.  `regex`: a pattern that the whole
    output matches.  `choice`: one of these texts.  `grammar`: EBNF, whose rule `root` it follows.
    `structural_tag`: free text with parts that keep to schemas, in xgrammar's form.
    `any_whitespace`: whether JSON may be spread over lines.  `provider`: the plugin that checks it.
    """

    json: Mapping[str, Any] | bool | str | None = None
    json_object: bool = False
    regex: str | None = None
    choice: Sequence[str] | None = None
    grammar: str | None = None
    structural_tag: Mapping[str, Any] | str | None = None
    any_whitespace: bool = True
    provider: str | None = None

    def __post_init__(self) -> None:
        given = [name for name in _KINDS if getattr(self, name) not in (None, False)]
        if self.json is False:
            given.append("json")
        if len(given) != 1:
            said = f"{' and '.join(given)} are given" if given else "nothing is asked for"
            raise RequestError(
                f"structured output: {said}", hint=f"give exactly one of {', '.join(_KINDS)}"
            )
        size = len(self.constraint.source)
        if size > LARGEST_SOURCE:
            raise RequestError(
                f"structured output: {given[0]} has {size} characters, more than {LARGEST_SOURCE}",
                hint=_HINT,
            )

    @property
    def constraint(self) -> Constraint:
        """Raises RequestError where what is asked for is not even of the right type."""
        kind, source = self._source()
        return Constraint(kind, source, self.any_whitespace, self.provider)

    def _source(self) -> tuple[Kind, str]:
        if self.json_object:
            return "json", '{"type": "object"}'
        if self.json is not None:
            return "json", _json("json", self.json)
        if self.structural_tag is not None:
            return "structural_tag", _json("structural_tag", self.structural_tag)
        if self.choice is not None:
            choice = self.choice
            if isinstance(choice, str) or not choice or not all(_is_text(c) for c in choice):
                raise RequestError(
                    "structured output: choice must be a list of texts, none of them empty",
                    hint=_HINT,
                )
            return "choice", json.dumps(list(choice))
        kind: Kind = "regex" if self.regex is not None else "grammar"
        source = getattr(self, kind)
        if not _is_text(source):
            raise RequestError(
                f"structured output: {kind} must be a text that is not empty", hint=_HINT
            )
        return kind, source


_KINDS = ("json", "json_object", "regex", "choice", "grammar", "structural_tag")


@dataclass(frozen=True, slots=True, kw_only=True)
class Thinking:
    """Where thoughts begin and end, in tokens, so that they are free and bounded.

    Constraints hold only after the thoughts.  `open`: the prompt has begun them.  `start`: the
    tokens that begin them; where it is one token, that one may also come instead of an answer.
    `budget`: most tokens of thoughts; then `forced` is written, which ends in `end`.
    """

    end: tuple[int, ...]
    start: tuple[int, ...] = ()
    forced: tuple[int, ...] = ()
    open: bool = False
    budget: int | None = None

    def __post_init__(self) -> None:
        if not self.end:
            raise RequestError("thoughts need tokens that end them")
        if self.budget is not None and self.budget < 0:
            raise RequestError(f"a thinking budget must not be negative, not {self.budget}")


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value)


def _json(name: str, value: object) -> str:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise RequestError(
                f"structured output: {name} is not JSON: {error}", hint=_HINT
            ) from None
    if not isinstance(value, Mapping | bool):
        raise RequestError(f"structured output: {name} must be an object", hint=_HINT)
    try:
        return json.dumps(value, ensure_ascii=False, default=dict)
    except (TypeError, ValueError, RecursionError) as error:
        raise RequestError(f"structured output: {name} is not JSON: {error}", hint=_HINT) from None
