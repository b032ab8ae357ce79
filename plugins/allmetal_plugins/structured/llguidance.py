"""Structured output by llguidance (https://github.com/guidance-ai/llguidance): no torch needed."""

from __future__ import annotations

import json
from typing import Any

import llguidance
import llguidance.numpy
import numpy as np
from llguidance.gbnf_to_lark import any_to_lark

from allmetal.constraint import Constraint
from allmetal.errors import RequestError
from allmetal.platform.contract import Unsupported
from allmetal.structured.compiler import readable
from allmetal.structured.contract import MOST_SPACES, Grammar, Mask, Vocabulary


class _Tokens:
    """What llguidance asks of a tokenizer.  Only masks are wanted, so any split of a text does."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        # A byte that no text has marks what is special.
        self.tokens = [b"\xff" if token is None else token for token in vocabulary.tokens]
        self.special_token_ids = [i for i, token in enumerate(vocabulary.tokens) if token is None]
        self.eos_token_id = vocabulary.stop_token_ids[0]
        self.bos_token_id = None
        self._by_bytes = {token: i for i, token in enumerate(self.tokens) if len(token) == 1}

    def __call__(self, text: str | bytes) -> list[int]:
        data = text.encode() if isinstance(text, str) else text
        return [self._by_bytes[bytes([byte])] for byte in data if bytes([byte]) in self._by_bytes]


class LLGuidance:
    """See Provider.  Grammars are Lark's, or GBNF where they define `root`."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._refusal = ""
        if not vocabulary.stop_token_ids:
            self._refusal = "the model has no token that ends a text"
            return
        stops = set(vocabulary.stop_token_ids)
        self._tokenizer = llguidance.LLTokenizer(
            llguidance.TokenizerWrapper(_Tokens(vocabulary)),
            n_vocab=vocabulary.size,
            eos_token=sorted(stops),
        )

    def compile(self, constraint: Constraint) -> Grammar | Unsupported:
        if self._refusal:
            return Unsupported(self._refusal)
        if constraint.kind == "structural_tag":
            return Unsupported("it has no structural tags")
        try:
            matcher = llguidance.LLMatcher(self._tokenizer, _source(constraint), log_level=0)
        except (ValueError, TypeError, RuntimeError, RecursionError) as error:
            return _wrong(constraint, readable(error))
        if matcher.is_error():
            return _wrong(constraint, matcher.get_error())
        return _Grammar(matcher)


def _wrong(constraint: Constraint, problem: str) -> Unsupported:
    """A schema may be right and not understood here; anything else is wrong."""
    reason = " ".join(problem.split())[:300].removesuffix(" hint")
    if constraint.kind == "json":
        return Unsupported(reason)
    raise RequestError(
        f"structured output: {constraint.kind} is not valid: {reason}",
        hint="see docs/structured-output.md for what is understood",
    )


def _source(constraint: Constraint) -> str:
    source = constraint.source
    match constraint.kind:
        case "json":
            options: Any = {"whitespace_flexible": False}
            if constraint.any_whitespace:
                options = {"whitespace_pattern": rf"[\x20\x0A\x0D\x09]{{0,{MOST_SPACES}}}"}
            return llguidance.LLMatcher.grammar_from_json_schema(source, defaults=options)
        case "regex":
            return llguidance.LLMatcher.grammar_from_regex(source)
        case "choice":
            texts = " | ".join(json.dumps(text) for text in json.loads(source))
            return llguidance.LLMatcher.grammar_from_lark(f"start: {texts}")
    if "::=" in source:
        try:
            source = any_to_lark(source)
        except Exception as error:  # it raises just that
            raise ValueError(str(error)) from None
    return llguidance.LLMatcher.grammar_from_lark(source)


class _Grammar:
    def __init__(self, matcher: llguidance.LLMatcher) -> None:
        self._fresh = matcher

    def matcher(self) -> _Matcher:
        return _Matcher(self._fresh.deep_copy())


class _Matcher:
    def __init__(self, matcher: llguidance.LLMatcher) -> None:
        self._matcher = matcher

    def fill(self, mask: Mask) -> None:
        if self.ended:
            mask.fill(0)
        else:
            llguidance.numpy.fill_next_token_bitmask(self._matcher, np.expand_dims(mask, 0))

    def accept(self, token_id: int) -> bool:
        return not self.ended and bool(self._matcher.consume_token(token_id))

    @property
    def ended(self) -> bool:
        return bool(self._matcher.is_stopped() or self._matcher.is_error())
