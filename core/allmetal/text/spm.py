"""SentencePiece's BPE on the Rust library, from a vocabulary with scores.

SentencePiece joins, again and again, the two neighbours whose joined text has the best score.  The
library wants a list of pairs in order instead: every way to cut a token into two tokens, the
tokens by falling score.  For distinct scores the two are the same, since within the span of a
token pairs are joined in one order only, whatever is around.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Container, Sequence
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers

from allmetal.config import cache_dir

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
"""Kinds of tokens, as SentencePiece and GGUF number them."""

SPACE = "▁"
_VERSION = b"pairs-1"

Pairs: TypeAlias = npt.NDArray[np.uint32]
"""[M, 2] ids of the tokens that are joined, the best first."""


def pairs_from_scores(
    tokens: Sequence[str], scores: Sequence[float], kinds: Sequence[int]
) -> Pairs:
    """Only normal tokens are made by joining, and only of normal tokens."""
    ids = {token: i for i, token in enumerate(tokens) if kinds[i] == NORMAL}
    find = ids.get
    found: list[tuple[int, int]] = []
    # The sort is stable: equal scores keep the order of the vocabulary.
    for i in sorted(ids.values(), key=lambda i: -scores[i]):
        token = tokens[i]
        for cut in range(1, len(token)):
            left = find(token[:cut])
            if left is not None:
                right = find(token[cut:])
                if right is not None:
                    found.append((left, right))
    return np.array(found, np.uint32).reshape(-1, 2)


def cached_pairs(
    tokens: Sequence[str], scores: npt.NDArray[np.float32], kinds: npt.NDArray[np.int32]
) -> Pairs:
    """As `pairs_from_scores`, kept on disk by content: a large vocabulary takes a second."""
    path = _cache_file(tokens, scores, kinds)
    with contextlib.suppress(OSError, ValueError, EOFError):
        pairs: Pairs = np.load(path, allow_pickle=False)
        if pairs.dtype == np.uint32 and pairs.ndim == 2 and pairs.max(initial=0) < len(tokens):
            return pairs
    pairs = pairs_from_scores(tokens, scores.tolist(), kinds.tolist())
    with contextlib.suppress(OSError):  # a read-only home costs time, not the model
        path.parent.mkdir(parents=True, exist_ok=True)
        scratch = path.with_suffix(f".{os.getpid()}.tmp")
        with scratch.open("wb") as file:
            np.save(file, pairs)
        scratch.replace(path)
    return pairs


def _cache_file(
    tokens: Sequence[str], scores: npt.NDArray[np.float32], kinds: npt.NDArray[np.int32]
) -> Path:
    digest = hashlib.blake2b(_VERSION, digest_size=16)
    for part in ("\0".join(tokens).encode(), scores.tobytes(), kinds.tobytes()):
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return cache_dir() / "tokenizers" / f"{digest.hexdigest()}.npy"


def spm_backend(
    tokens: Sequence[str],
    pairs: Pairs,
    kinds: Sequence[int],
    *,
    unknown: str | None,
    space_prefix: bool,
    ids: Sequence[int] | None = None,
) -> tokenizers.Tokenizer:
    """`space_prefix`: a space is put before a text, and taken from the front of a decoded one.

    `ids`: the numbers of `tokens`, where they are part of a vocabulary; pairs count within them.
    """
    spell = tokens.__getitem__
    left, right = pairs.T.tolist()
    backend = tokenizers.Tokenizer(
        models.BPE(
            vocab=dict(zip(tokens, ids or range(len(tokens)), strict=True)),
            merges=list(zip(map(spell, left), map(spell, right), strict=True)),
            unk_token=unknown,
            fuse_unk=True,
            byte_fallback=BYTE in kinds,
        )
    )
    spaces = normalizers.Replace(" ", SPACE)
    steps = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if space_prefix:
        backend.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), spaces])
        steps.append(decoders.Strip(" ", 1, 0))
    else:
        backend.normalizer = spaces
    backend.decoder = decoders.Sequence(steps)
    return backend


def add_marked_tokens(
    backend: tokenizers.Tokenizer,
    tokens: Sequence[str],
    kinds: Sequence[int],
    *,
    space_prefix: bool,
    strips_right: Container[int] = (),
) -> None:
    """Control tokens are special; user-defined ones are found whole in a text, and shown.

    SentencePiece looks for runs of spaces once they are spelled with its mark, so that a mark in
    the text counts as a space.  `strips_right`: ids that swallow the spaces after them.
    """
    for kind in (CONTROL, USER_DEFINED):
        added = [
            AddedToken(
                token,
                normalized=not space_prefix and (SPACE in token or " " in token),
                special=kind == CONTROL,
                rstrip=i in strips_right,
            )
            for i, token in enumerate(tokens)
            if kinds[i] == kind and token
        ]
        if kind == CONTROL:
            backend.add_special_tokens(added)
        else:
            backend.add_tokens(added)
