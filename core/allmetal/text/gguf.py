"""The tokenizer that a GGUF file's metadata describes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
import tokenizers

from allmetal.checkpoint.gguf.reader import StringArray, Value
from allmetal.errors import CheckpointError
from allmetal.text.bpe import KINDS, bpe_backend
from allmetal.text.folder import set_template
from allmetal.text.spm import (
    BYTE,
    CONTROL,
    NORMAL,
    USER_DEFINED,
    add_marked_tokens,
    cached_pairs,
    spm_backend,
)
from allmetal.text.tokenizer import TokenizerParts

_PREFIX = "tokenizer.ggml."
_ROLES = {
    "bos": "bos_token",
    "eos": "eos_token",
    "unknown": "unk_token",
    "padding": "pad_token",
    "seperator": "sep_token",  # the format spells it so
    "mask": "mask_token",
}
_OTHER_TOKENIZER = "name the model's folder or hub name with --tokenizer"

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


def gguf_parts(metadata: Mapping[str, Value], where: str) -> TokenizerParts:
    """Raises CheckpointError where the metadata has no tokenizer, or one of an unknown kind."""
    vocab = _Vocabulary(metadata, where)
    model = metadata.get(f"{_PREFIX}model")
    if model == "llama":
        backend, adds_bos = _sentencepiece(vocab), True
    elif model == "gpt2":
        backend, adds_bos = _byte_level(vocab)
    else:
        raise CheckpointError(
            f"{where} has a tokenizer of the kind {model!r}, which is not read",
            hint=_OTHER_TOKENIZER,
        )
    add_marked_tokens(
        backend,
        vocab.tokens,
        vocab.kinds.tolist(),
        space_prefix=model != "llama" or bool(vocab.get("add_space_prefix", True)),
        strips_right=_right_strips(vocab),
    )
    special = vocab.special_tokens()
    set_template(
        backend,
        special.get("bos_token") if vocab.get("add_bos_token", adds_bos) else None,
        special.get("eos_token") if vocab.get("add_eos_token", False) else None,
    )
    return TokenizerParts(
        backend=backend,
        special_tokens=special,
        eos_token_ids=vocab.ends(),
        chat_templates=_chat_templates(metadata),
    )


class _Vocabulary:
    """The arrays of the metadata, held against each other."""

    def __init__(self, metadata: Mapping[str, Value], where: str) -> None:
        self.where = where
        self.architecture = metadata.get("general.architecture")
        self._metadata = metadata
        tokens = metadata.get(f"{_PREFIX}tokens")
        if not isinstance(tokens, StringArray) or not len(tokens):
            raise CheckpointError(f"{where} has no tokenizer", hint=_OTHER_TOKENIZER)
        self.tokens = _distinct(tokens.decode())
        self.kinds = self._numbers("token_type", np.int32, NORMAL)
        self.scores = self._numbers("scores", np.float32, 0)

    def _numbers(self, key: str, dtype: Any, default: int) -> np.ndarray[Any, Any]:
        found = self._metadata.get(_PREFIX + key)
        if found is None:
            return np.full(len(self.tokens), default, dtype)
        if not isinstance(found, np.ndarray) or len(found) != len(self.tokens):
            raise CheckpointError(f"{self.where}: {_PREFIX}{key} does not have one entry a token")
        return found.astype(dtype)

    def get(self, key: str, default: Any = None) -> Any:
        return self._metadata.get(_PREFIX + key, default)

    def of_kind(self, *kinds: int) -> list[int]:
        return [int(i) for i in np.flatnonzero(np.isin(self.kinds, kinds))]

    def special_tokens(self) -> dict[str, str]:
        found = {}
        for key, role in _ROLES.items():
            id_ = self.get(f"{key}_token_id")
            if isinstance(id_, int) and 0 <= id_ < len(self.tokens):
                found[role] = self.tokens[id_]
        return found

    def ends(self) -> tuple[int, ...]:
        stated = [self.get(f"{key}_token_id") for key in ("eos", "eot", "eom")]
        known = [i for i in self.of_kind(CONTROL) if self.tokens[i] in ENDS]
        return tuple(dict.fromkeys(i for i in [*stated, *known] if isinstance(i, int)))


def _distinct(tokens: list[str]) -> list[str]:
    """A token spelled like an earlier one is never encoded to; it gets a name of its own."""
    if len(set(tokens)) == len(tokens):
        return tokens
    seen: Counter[str] = Counter()
    out = []
    for i, token in enumerate(tokens):
        out.append(f"[{token} {i}]" if seen[token] else token)
        seen[token] += 1
    return out


def _sentencepiece(vocab: _Vocabulary) -> tokenizers.Tokenizer:
    return spm_backend(
        vocab.tokens,
        cached_pairs(vocab.tokens, vocab.scores, vocab.kinds),
        vocab.kinds.tolist(),
        unknown=vocab.special_tokens().get("unk_token"),
        space_prefix=bool(vocab.get("add_space_prefix", True)),
    )


def _byte_level(vocab: _Vocabulary) -> tuple[tokenizers.Tokenizer, bool]:
    merges, pre = vocab.get("merges"), vocab.get("pre", "default")
    if not isinstance(merges, StringArray):
        raise CheckpointError(f"{vocab.where}: the metadata lacks {_PREFIX}merges")
    kind = KINDS.get(pre)
    if kind is None:
        raise CheckpointError(
            f"{vocab.where} splits text in the way {pre!r}, which is not known",
            hint=_OTHER_TOKENIZER,
        )
    return bpe_backend(vocab.tokens, merges, kind), kind.adds_bos


def _right_strips(vocab: _Vocabulary) -> frozenset[int]:
    """Phi-3's SentencePiece tokenizer swallows spaces after its marks; the format has no word for
    it, so llama.cpp goes by the model too."""
    if vocab.architecture != "phi3" or not vocab.of_kind(BYTE):
        return frozenset()
    keep = {"<unk>", "<s>", "<|endoftext|>"}
    marks = vocab.of_kind(CONTROL, USER_DEFINED)
    return frozenset(i for i in marks if vocab.tokens[i] not in keep)


def _chat_templates(metadata: Mapping[str, Value]) -> dict[str, str]:
    found = {}
    for key, value in metadata.items():
        if key.startswith("tokenizer.chat_template") and isinstance(value, str):
            name = key.removeprefix("tokenizer.chat_template").removeprefix(".")
            found[name or "default"] = value
    return found
