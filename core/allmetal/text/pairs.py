"""A text, or two that are judged together, as token ids."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from allmetal.text.tokenizer import Tokenizer

TextPair: TypeAlias = tuple[str, str]


class Encoded(NamedTuple):
    """`second_at`: where the second segment begins, None where the model knows of one only."""

    token_ids: list[int]
    second_at: int | None = None


def encode_pair(tokenizer: Tokenizer, pair: TextPair) -> Encoded:
    """Both texts with what the model puts around and between them."""
    found = tokenizer.backend.encode(*pair)
    segments = found.type_ids
    return Encoded(found.ids, segments.index(1) if 1 in segments else None)
