"""The vocabulary in a GGUF file's metadata."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np

from allmetal.checkpoint.gguf.reader import StringArray, Value
from allmetal.errors import CheckpointError
from allmetal.text.spm import CONTROL, NORMAL, USER_DEFINED

PREFIX = "tokenizer.ggml."
OTHER_TOKENIZER = "name the model's folder or hub name with --tokenizer"

_ROLES = {
    "bos": "bos_token",
    "eos": "eos_token",
    "unknown": "unk_token",
    "padding": "pad_token",
    "seperator": "sep_token",  # the format spells it so
    "mask": "mask_token",
}

ENDS = frozenset(
    {
        "<|eot_id|>",
        "<|eom_id|>",
        "<|im_end|>",
        "<|end|>",
        "<end_of_turn>",
        "<|endoftext|>",
        "<|end_of_text|>",
        "<|return|>",
        "<EOT>",
        "<｜end▁of▁sentence｜>",
    }
)
"""Control tokens that end a text in whatever model has them: files name one or two by number, and
llama.cpp knows the others by their text too."""


class Vocabulary:
    """The arrays of the metadata, held against each other.  `raw`: the tokens as they are stored.

    A token spelled like an earlier one is never encoded to; it gets a name of its own.
    """

    def __init__(self, metadata: Mapping[str, Value], where: str) -> None:
        self.where = where
        self.architecture = metadata.get("general.architecture")
        self._metadata = metadata
        tokens = metadata.get(f"{PREFIX}tokens")
        if not isinstance(tokens, StringArray) or not len(tokens):
            raise CheckpointError(f"{where} has no tokenizer", hint=OTHER_TOKENIZER)
        self.raw = _valid(tokens.split())
        self.kinds = self._numbers("token_type", np.int32, NORMAL)
        self.scores = self._numbers("scores", np.float32, 0)

    @cached_property
    def tokens(self) -> list[str]:
        tokens = [token.decode() for token in self.raw]
        for i, name in self.renamed.items():
            tokens[i] = name
        return tokens

    def spell(self, token_id: int) -> str:
        """The token's text; empty for a number beyond the vocabulary."""
        if not 0 <= token_id < len(self.raw):
            return ""
        return self.renamed.get(token_id) or self.raw[token_id].decode()

    @cached_property
    def renamed(self) -> Mapping[int, str]:
        if len(set(self.raw)) == len(self.raw):
            return {}
        seen: set[bytes] = set()
        out = {}
        for i, token in enumerate(self.raw):
            if token in seen:
                out[i] = f"[{token.decode()} {i}]"
            seen.add(token)
        return out

    def _numbers(self, key: str, dtype: Any, default: int) -> np.ndarray[Any, Any]:
        found = self._metadata.get(PREFIX + key)
        if found is None:
            return np.full(len(self.raw), default, dtype)
        if not isinstance(found, np.ndarray) or len(found) != len(self.raw):
            raise CheckpointError(f"{self.where}: {PREFIX}{key} does not have one entry a token")
        return found.astype(dtype)

    def get(self, key: str, default: Any = None) -> Any:
        return self._metadata.get(PREFIX + key, default)

    def of_kind(self, *kinds: int) -> list[int]:
        return [int(i) for i in np.flatnonzero(np.isin(self.kinds, kinds))]

    def is_marked(self, token_id: int) -> bool:
        """Found whole in a text, before pairs are joined."""
        return int(self.kinds[token_id]) in (CONTROL, USER_DEFINED)

    def special_ids(self) -> list[int]:
        """Ids of the tokens that have a role."""
        return list(self._roles().values())

    def special_tokens(self) -> dict[str, str]:
        return {role: self.spell(id_) for role, id_ in self._roles().items()}

    def _roles(self) -> dict[str, int]:
        found = {}
        for key, role in _ROLES.items():
            id_ = self.get(f"{key}_token_id")
            if isinstance(id_, int) and 0 <= id_ < len(self.raw):
                found[role] = id_
        return found

    def ends(self) -> tuple[int, ...]:
        stated = [self.get(f"{key}_token_id") for key in ("eos", "eot", "eom")]
        known = [i for i in self.of_kind(CONTROL) if self.spell(i) in ENDS]
        return tuple(dict.fromkeys(i for i in [*stated, *known] if isinstance(i, int)))


def _valid(tokens: list[bytes]) -> list[bytes]:
    """Bytes that are no UTF-8 become U+FFFD."""
    try:
        b"\0".join(tokens).decode()
    except UnicodeDecodeError:
        return [token.decode("utf-8", "replace").encode() for token in tokens]
    return tokens
