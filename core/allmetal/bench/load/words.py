"""Prompts of a wanted length in tokens."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from allmetal.bench.load.records import PromptText
from allmetal.text.tokenizer import Tokenizer

_TEXT = """
time year people way day man thing woman life child world school state family student group country
problem hand part place case week company system program question work government number night point
home water room mother area money story fact month lot right study book eye job word business issue
side kind head house service friend father power hour game line end member law car city community
name president team minute idea body information back parent face others level office door health
person art war history party result change morning reason research girl guy moment air teacher force
education foot boy age policy music market sense plan paper stone river tree bird light road field
green white black small large early young old high low long short open clear strong warm cold quick
"""
_WORDS = _TEXT.split()


class Writer(Protocol):
    """Makes prompts."""

    def write(self, chance: random.Random, num_tokens: int) -> PromptText:
        """Random, of about this length in tokens or of exactly it."""
        ...

    def join(self, first: PromptText, second: PromptText) -> PromptText: ...

    def count(self, text: str) -> int:
        """Tokens of a text."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class WordWriter:
    """English words, by what the server said of two samples: tokens = fixed + each * words."""

    fixed: float
    each: float
    characters: float
    """Of a word and the space before it, in the samples."""

    def write(self, chance: random.Random, num_tokens: int) -> str:
        return words(chance, max(1, round((num_tokens - self.fixed) / self.each)))

    def join(self, first: PromptText, second: PromptText) -> str:
        return f"{first} {second}"

    def count(self, text: str) -> int:
        return max(1, round(len(text) / self.characters * self.each))


@dataclass(frozen=True, slots=True)
class IdWriter:
    """Token ids, any but special ones; texts of them where only those are taken."""

    tokenizer: Tokenizer
    ids: Sequence[int]
    as_text: bool

    @classmethod
    def of(cls, tokenizer: Tokenizer, *, as_text: bool) -> IdWriter:
        ids = [i for i in range(tokenizer.vocab_size) if i not in tokenizer.special_ids]
        return cls(tokenizer, ids, as_text)

    def write(self, chance: random.Random, num_tokens: int) -> PromptText:
        ids = chance.choices(self.ids, k=num_tokens)
        return self.tokenizer.decode(ids) if self.as_text else ids

    def join(self, first: PromptText, second: PromptText) -> PromptText:
        if isinstance(first, str) or isinstance(second, str):
            return f"{first}{second}"
        return [*first, *second]

    def count(self, text: str) -> int:
        return max(1, len(self.tokenizer.encode(text, add_special_tokens=False)))


def words(chance: random.Random, count: int) -> str:
    return " ".join(chance.choices(_WORDS, k=count))
