"""What each token adds to a text, in bytes: for tokenizers whose decoder works token by token.

Two kinds cover nearly all language models: byte-level ones (every character of a token stands for
a byte) and SentencePiece's ("▁" is a space, `<0x0A>` a byte).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Protocol, TypeAlias

import tokenizers

Spell: TypeAlias = Callable[[int], str | None]
"""A token's text; None or empty for a number beyond the vocabulary."""

_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class Pieces(Protocol):
    @property
    def strips_first_space(self) -> bool:
        """A text's first character is dropped if it is a space: the tokenizer put it there."""
        ...

    def bytes_of(self, token_id: int) -> bytes:
        """Empty for a number beyond the vocabulary."""
        ...


def pieces_of(backend: tokenizers.Tokenizer, spell: Spell | None = None) -> Pieces | None:
    """None where the decoder is of another kind, and tokens must be decoded together.

    `spell` where the vocabulary is not the backend's.
    """
    spell = spell or backend.id_to_token
    if backend.decoder is None:
        return None
    state: dict[str, Any] = json.loads(backend.decoder.__getstate__())
    steps = state["decoders"] if state["type"] == "Sequence" else [state]
    kinds = [step["type"] for step in steps]
    if kinds == ["ByteLevel"]:
        return ByteLevelPieces(spell)
    space: str | None = None
    strips = False
    for step in steps:
        match step:
            case {"type": "Replace", "pattern": {"String": mark}, "content": " "}:
                space = mark
            case {"type": "Metaspace", "replacement": mark}:
                space = mark
                strips = step.get("prepend_scheme", "always") != "never"
            case {"type": "Strip", "content": " ", "start": 1, "stop": 0}:
                strips = True
            case {"type": "ByteFallback" | "Fuse"}:
                pass
            case _:
                return None
    if space is None:
        return None
    return SpacePieces(spell, space, strips=strips, has_bytes="ByteFallback" in kinds)


class ByteLevelPieces:
    """Source: GPT-2's byte encoder.  A token with other characters than its 256 is plain text."""

    strips_first_space = False

    def __init__(self, spell: Spell) -> None:
        self._spell = spell
        self._known: dict[int, bytes] = {}

    def bytes_of(self, token_id: int) -> bytes:
        found = self._known.get(token_id)
        if found is None:
            token = self._spell(token_id) or ""
            alphabet = byte_alphabet()
            try:
                found = bytes([alphabet[character] for character in token])
            except KeyError:
                found = token.encode()
            self._known[token_id] = found
        return found


class SpacePieces:
    """SentencePiece's spelling."""

    def __init__(self, spell: Spell, space: str, *, strips: bool, has_bytes: bool) -> None:
        self._spell = spell
        self._space = space
        self._known: dict[int, bytes] = {}
        self._bytes = has_bytes
        self.strips_first_space = strips

    def bytes_of(self, token_id: int) -> bytes:
        found = self._known.get(token_id)
        if found is None:
            token = self._spell(token_id) or ""
            byte = _BYTE.fullmatch(token) if self._bytes else None
            if byte is not None:
                found = bytes([int(byte[1], 16)])
            else:
                found = token.replace(self._space, " ").encode()
            self._known[token_id] = found
        return found


@lru_cache(maxsize=1)
def byte_alphabet() -> Mapping[str, int]:
    """GPT-2's 256 characters -> the byte each stands for: itself where it can be seen."""
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in set(visible)]
    return {chr(byte): byte for byte in visible} | {
        chr(0x100 + index): byte for index, byte in enumerate(hidden)
    }
