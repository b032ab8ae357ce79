"""A tokenizer whose vocabulary is worked in when it is worth it.

Handing a vocabulary of a quarter of a million tokens to the library takes as long as loading a
small model.  Joining pairs makes nothing that is not in the text, so that a text is cut the same by
a vocabulary of only the tokens that stand in it, which is made in a moment.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

import tokenizers

NUM_TEXTS = 8
"""Making this many narrow ones takes about as long as half of making the whole."""
LONGEST = 1000
"""Characters of a text that a narrow one is made for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """`narrow(text)` encodes `text` as `whole()` does, if it is not None.

    `spell` gives a token's text, empty for a number beyond the vocabulary, as the whole has it.
    """

    whole: Callable[[], tokenizers.Tokenizer]
    narrow: Callable[[str], tokenizers.Tokenizer | None]
    spell: Callable[[int], str]
    special_ids: frozenset[int]
    vocab_size: int


class LateBackend:
    """Safe to use from several threads."""

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        self._lock = threading.Lock()
        self._whole: tokenizers.Tokenizer | None = None
        self._left = NUM_TEXTS

    def whole(self) -> tokenizers.Tokenizer:
        with self._lock:
            if self._whole is None:
                self._whole = self.recipe.whole()
            return self._whole

    def for_text(self, text: str) -> tokenizers.Tokenizer:
        """One that encodes this text; the whole from when many or long ones were asked for."""
        if self._whole is None and self._left > 0 and len(text) <= LONGEST:
            self._left -= 1
            narrow = self.recipe.narrow(text)
            if narrow is not None:
                return narrow
        return self.whole()
