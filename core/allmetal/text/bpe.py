"""Byte-level BPE from a GGUF's vocabulary and merges, with the split its model was trained with.

Source of the splits: the regular expressions in the families' tokenizer.json files, and the names
that llama-vocab.cpp gives them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import tokenizers
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"


def _split(digits: str) -> str:
    return (
        rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{digits}"
        rf"| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}"
    )


_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"


def _cased_split(contractions: str, digits: str) -> str:
    lead = r"[^\r\n\p{L}\p{N}]?"
    return (
        rf"{lead}{_UPPER}*{_LOWER}+{contractions}|{lead}{_UPPER}+{_LOWER}*{contractions}"
        rf"|\p{{N}}{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """How text is cut before pairs are joined.

    `pattern` None is GPT-2's own, after digits were set apart where `lone_digits`.
    `whole_words`: a word that is a token stays one, whatever the merges say.
    """

    pattern: str | None = None
    lone_digits: bool = False
    compose: bool = False  # Unicode's NFC first
    whole_words: bool = False
    adds_bos: bool = False


_LLAMA3 = Kind(pattern=_split("{1,3}"), whole_words=True, adds_bos=True)
_LIKE_LLAMA3 = Kind(pattern=_split("{1,3}"))
_QWEN2 = Kind(pattern=_split(""), compose=True)
_GPT2 = Kind()
_LONE_DIGITS = Kind(lone_digits=True)

KINDS: Mapping[str, Kind] = {
    **dict.fromkeys(("llama3", "llama-v3", "llama-bpe", "falcon3", "pixtral", "lfm2"), _LLAMA3),
    **dict.fromkeys(("dbrx", "smaug-bpe", "chatglm-bpe", "glm4"), _LIKE_LLAMA3),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "megrez"), _QWEN2),
    "stablelm2": Kind(pattern=_split("")),
    **dict.fromkeys(("gpt-2", "olmo", "phi-2", "mpt", "jais", "exaone4", "trillion"), _GPT2),
    **dict.fromkeys(
        ("starcoder", "refact", "command-r", "smollm", "codeshell", "exaone", "minerva-7b"),
        _LONE_DIGITS,
    ),
    "tekken": Kind(pattern=_cased_split("", ""), whole_words=True, adds_bos=True),
    **dict.fromkeys(("gpt-4o", "llama4"), Kind(pattern=_cased_split(f"{_CONTRACTIONS}?", "{1,3}"))),
}
"""tokenizer.ggml.pre -> kind."""


def bpe_backend(
    tokens: Sequence[str],
    merges: Iterable[str],
    kind: Kind,
    *,
    ids: Sequence[int] | None = None,
) -> tokenizers.Tokenizer:
    """`merges`: two tokens with a space between, the first joined first.

    `ids`: the numbers of `tokens`, where they are part of a vocabulary.
    """
    pairs = []
    for merge in merges:
        left, _, right = merge.partition(" ")
        pairs.append((left, right))
    backend = tokenizers.Tokenizer(
        models.BPE(
            vocab=dict(zip(tokens, ids or range(len(tokens)), strict=True)),
            merges=pairs,
            ignore_merges=kind.whole_words,
        )
    )
    if kind.compose:
        backend.normalizer = normalizers.NFC()
    if kind.pattern is not None:
        first: list[pre_tokenizers.PreTokenizer] = [
            pre_tokenizers.Split(Regex(kind.pattern), behavior="isolated")
        ]
    else:
        first = [pre_tokenizers.Digits(individual_digits=True)] if kind.lone_digits else []
    bytes_ = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=kind.pattern is None)
    backend.pre_tokenizer = pre_tokenizers.Sequence([*first, bytes_])
    backend.decoder = decoders.ByteLevel()
    return backend
