"""Structured output by xgrammar (https://xgrammar.mlc.ai): all kinds of constraints."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

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
        # By itself it lets control characters into texts of bounded length, which JSON forbids.
        self._legal = {
            "json": without(vocabulary.tokens, bytes({*range(32)} - {*b"\n\r"})),
            "structural_tag": without(vocabulary.tokens, bytes({*range(32)} - {*b"\n\r\t"})),
        }
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
            compiled = self._compile(constraint)
            return _XGrammar(compiled, self._legal.get(constraint.kind), endless=not self._stops)
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
                    source,
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


def without(tokens: Sequence[bytes | None], characters: bytes) -> Mask:
    """All tokens but those with any of these characters."""
    table = np.zeros(32 * -(-len(tokens) // 32), np.uint8)
    table[: len(tokens)] = [token is None or not set(token) & set(characters) for token in tokens]
    return np.packbits(table, bitorder="little").view(np.int32)


def choice_grammar(texts: list[str]) -> str:
    """EBNF of one of these texts."""
    return "root ::= " + " | ".join(json.dumps(text, ensure_ascii=True) for text in texts)


class _XGrammar:
    """`legal`: the tokens that may come at all."""

    def __init__(
        self, compiled: xgrammar.CompiledGrammar, legal: Mask | None, *, endless: bool
    ) -> None:
        self._compiled = compiled
        self._legal = legal
        self._endless = endless

    def matcher(self) -> _Matcher:
        matcher = xgrammar.GrammarMatcher(
            self._compiled, terminate_without_stop_token=self._endless
        )
        return _Matcher(matcher, self._legal)


class _Matcher:
    def __init__(self, matcher: xgrammar.GrammarMatcher, legal: Mask | None) -> None:
        self._matcher = matcher
        self._legal = legal

    def fill(self, mask: Mask) -> None:
        if self._matcher.is_terminated():
            mask.fill(0)
        elif not self._matcher.fill_next_token_bitmask(np.expand_dims(mask, 0)):
            mask.fill(-1)
        if self._legal is not None:
            mask &= self._legal

    def accept(self, token_id: int) -> bool:
        return not self.ended and bool(self._matcher.accept_token(token_id))

    @property
    def ended(self) -> bool:
        return bool(self._matcher.is_terminated())
