"""Structured output by xgrammar (https://xgrammar.mlc.ai): all kinds of constraints."""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np
import xgrammar

from allmetal.constraint import Constraint
from allmetal.errors import RequestError
from allmetal.platform.contract import Unsupported
from allmetal.structured.compiler import readable
from allmetal.structured.contract import MOST_SPACES, Grammar, Mask, Vocabulary
from allmetal_plugins.structured.schema_gaps import gap

_THREADS = 2
_PLACE = re.compile(r"^\[[\d:]+\] \S+: (Check failed: .*? is false: )?")
"""Time and line of its own sources."""
_HINTS = {
    "regex": "a pattern without look-around and back references",
    "grammar": 'EBNF such as: root ::= "yes" | "no"',
    "structural_tag": 'such as {"type": "structural_tag", "format": {..}}',
    "choice": "a list of texts",
}


class XGrammar:
    """See Provider."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        tokens = [b"" if token is None else token for token in vocabulary.tokens]
        self._stops = vocabulary.stop_token_ids
        self._compiler = xgrammar.GrammarCompiler(
            xgrammar.TokenizerInfo(
                tokens[: vocabulary.size],
                vocab_type=xgrammar.VocabType.RAW,
                vocab_size=vocabulary.size,
                stop_token_ids=list(self._stops),
            ),
            max_threads=_THREADS,
            cache_enabled=False,  # whoever calls keeps what is used
        )

    def compile(self, constraint: Constraint) -> Grammar | Unsupported:
        if constraint.kind == "json" and (reason := gap(json.loads(constraint.source))):
            return Unsupported(reason)
        try:
            return _XGrammar(self._compile(constraint), endless=not self._stops)
        except (RuntimeError, ValueError, TypeError, RecursionError) as error:
            problem = _PLACE.sub("", readable(error))
            if constraint.kind == "json":  # which another may understand better
                return Unsupported(problem)
            raise RequestError(
                f"structured output: {constraint.kind} is not valid: {problem}",
                hint=_HINTS[constraint.kind],
            ) from None

    def _compile(self, constraint: Constraint) -> xgrammar.CompiledGrammar:
        compiler, source = self._compiler, constraint.source
        match constraint.kind:
            case "json":
                return compiler.compile_json_schema(
                    json.dumps(bounded(json.loads(source))),
                    any_whitespace=constraint.any_whitespace,
                    max_whitespace_cnt=MOST_SPACES if constraint.any_whitespace else None,
                )
            case "regex":
                return compiler.compile_regex(source)
            case "grammar":
                return compiler.compile_grammar(source)
            case "structural_tag":
                return compiler.compile_structural_tag(source)
            case "choice":
                return compiler.compile_grammar(choice_grammar(json.loads(source)))


def bounded(schema: Any) -> Any:
    """The schema with lengths of texts as patterns: by itself xgrammar lets control characters,
    which JSON forbids, into texts of bounded length."""
    if isinstance(schema, list):
        return [bounded(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    made = {
        key: value if key in ("enum", "const", "default", "examples") else bounded(value)
        for key, value in schema.items()
    }
    low, high = made.get("minLength"), made.get("maxLength")
    counts = [n for n in (low, high) if n is not None]
    if counts and all(isinstance(n, int) for n in counts) and "pattern" not in made:
        del_keys = ("minLength", "maxLength")
        made = {key: value for key, value in made.items() if key not in del_keys}
        upper = "" if high is None else high
        made["pattern"] = f'^[^"\\\\\\x00-\\x1f\\x7f]{{{low or 0},{upper}}}$'
    return made


def choice_grammar(texts: list[str]) -> str:
    """EBNF of one of these texts."""
    return "root ::= " + " | ".join(json.dumps(text, ensure_ascii=True) for text in texts)


class _XGrammar:
    def __init__(self, compiled: xgrammar.CompiledGrammar, *, endless: bool) -> None:
        self._compiled = compiled
        self._endless = endless

    def matcher(self) -> _Matcher:
        return _Matcher(
            xgrammar.GrammarMatcher(self._compiled, terminate_without_stop_token=self._endless)
        )


class _Matcher:
    def __init__(self, matcher: Any) -> None:
        self._matcher = matcher

    def fill(self, mask: Mask) -> None:
        if self._matcher.is_terminated():
            mask.fill(0)
        elif not self._matcher.fill_next_token_bitmask(np.expand_dims(mask, 0)):
            mask.fill(-1)

    def accept(self, token_id: int) -> bool:
        return not self.ended and bool(self._matcher.accept_token(token_id))

    @property
    def ended(self) -> bool:
        return bool(self._matcher.is_terminated())
