"""The tokenizer that a GGUF file's metadata describes."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import tokenizers

from allmetal.checkpoint.gguf.reader import StringArray, Value
from allmetal.errors import CheckpointError
from allmetal.text.bpe import KINDS, Kind, bpe_backend
from allmetal.text.folder import set_template
from allmetal.text.gguf_vocabulary import OTHER_TOKENIZER, PREFIX, Vocabulary
from allmetal.text.late import LateBackend, Recipe
from allmetal.text.pieces import byte_alphabet
from allmetal.text.spm import (
    BYTE,
    CONTROL,
    SPACE,
    UNKNOWN,
    USER_DEFINED,
    add_marked_tokens,
    cached_pairs,
    pairs_from_scores,
    spm_backend,
)
from allmetal.text.tokenizer import TokenizerParts


def gguf_parts(metadata: Mapping[str, Value], where: str, *, late: bool = False) -> TokenizerParts:
    """`late`: the whole vocabulary is worked in when it is needed.

    Raises CheckpointError where the metadata has no tokenizer, or one of an unknown kind.
    """
    vocab = Vocabulary(metadata, where)
    model = metadata.get(f"{PREFIX}model")
    if model == "llama":
        family: _Family = _SentencePiece(vocab)
    elif model == "gpt2":
        family = _byte_level(vocab)
    else:
        raise CheckpointError(
            f"{where} has a tokenizer of the kind {model!r}, which is not read",
            hint=OTHER_TOKENIZER,
        )
    recipe = Recipe(
        whole=lambda: _finished(family, vocab, None),
        narrow=lambda text: _narrow(family, vocab, text),
        spell=family.spell,
        special_ids=frozenset(i for i in vocab.of_kind(CONTROL) if vocab.raw[i]),
        vocab_size=len(vocab.raw),
    )
    return TokenizerParts(
        backend=LateBackend(recipe) if late else recipe.whole(),
        special_tokens=vocab.special_tokens(),
        eos_token_ids=vocab.ends(),
        chat_templates=_chat_templates(metadata),
    )


class _Family(Protocol):
    """A way of making a tokenizer from a vocabulary, or from some of its ids."""

    @property
    def adds_bos(self) -> bool: ...

    @property
    def space_prefix(self) -> bool: ...

    def backend(self, ids: Sequence[int] | None) -> tokenizers.Tokenizer: ...

    def spell(self, token_id: int) -> str:
        """As the finished tokenizer does; empty for a number beyond the vocabulary."""
        ...

    def spelled(self, text: str) -> str | None:
        """Text in which all stands that tokens of `text` can spell; None where that is unsure."""
        ...


def _finished(
    family: _Family, vocab: Vocabulary, ids: Sequence[int] | None
) -> tokenizers.Tokenizer:
    backend = family.backend(ids)
    right = _right_strips(vocab)
    add_marked_tokens(
        backend,
        vocab.tokens if ids is None else [vocab.spell(i) for i in ids],
        (vocab.kinds if ids is None else vocab.kinds[ids]).tolist(),
        space_prefix=family.space_prefix,
        strips_right=right if ids is None else {n for n, i in enumerate(ids) if i in right},
    )
    special = vocab.special_tokens()
    set_template(
        backend,
        special.get("bos_token") if vocab.get("add_bos_token", family.adds_bos) else None,
        special.get("eos_token") if vocab.get("add_eos_token", False) else None,
    )
    return backend


def _narrow(family: _Family, vocab: Vocabulary, text: str) -> tokenizers.Tokenizer | None:
    """Of the tokens that stand in the text, and those that can stand for what is unknown."""
    spelled = family.spelled(text)
    if spelled is None or vocab.renamed:
        return None
    try:
        place = f"{text}\0{spelled}".encode()
    except UnicodeEncodeError:  # no text: let the whole say so
        return None
    # A token with spaces may be looked for in another spelling.
    spaced = [i for i in vocab.of_kind(CONTROL, USER_DEFINED) if b" " in vocab.raw[i]]
    always = {*vocab.of_kind(BYTE, UNKNOWN), *vocab.special_ids(), *spaced}
    if text:
        always.update(i for i, token in enumerate(vocab.raw) if token in place)
    return _finished(family, vocab, sorted(always))


class _SentencePiece:
    adds_bos = True

    def __init__(self, vocab: Vocabulary) -> None:
        self._vocab = vocab
        self.space_prefix = bool(vocab.get("add_space_prefix", True))

    def backend(self, ids: Sequence[int] | None) -> tokenizers.Tokenizer:
        vocab = self._vocab
        if ids is None:
            tokens, kinds = vocab.tokens, vocab.kinds.tolist()
            pairs = cached_pairs(tokens, vocab.scores, vocab.kinds)
        else:
            tokens, kinds = [vocab.spell(i) for i in ids], vocab.kinds[ids].tolist()
            pairs = pairs_from_scores(tokens, vocab.scores[ids].tolist(), kinds)
        return spm_backend(
            tokens,
            pairs,
            kinds,
            unknown=vocab.special_tokens().get("unk_token"),
            space_prefix=self.space_prefix,
            ids=ids,
        )

    def spell(self, token_id: int) -> str:
        token = self._vocab.spell(token_id)
        # The library keeps a token that it looks for among normalised text as it is looked for.
        if not self.space_prefix and " " in token and self._vocab.is_marked(token_id):
            return token.replace(" ", SPACE)
        return token

    def spelled(self, text: str) -> str | None:
        text = text.replace(" ", SPACE)
        if not self.space_prefix:
            return text
        # After a token that is found whole the text starts anew, with a space.
        whole = [self._vocab.spell(i) for i in self._vocab.of_kind(CONTROL, USER_DEFINED)]
        anew = [text.replace(token, SPACE) for token in whole if token and token in text]
        return "\0".join([SPACE + text, *anew])


@dataclass(frozen=True, slots=True)
class _ByteLevel:
    vocab: Vocabulary
    merges: StringArray
    kind: Kind
    space_prefix: bool = True

    @property
    def adds_bos(self) -> bool:
        return self.kind.adds_bos

    def backend(self, ids: Sequence[int] | None) -> tokenizers.Tokenizer:
        if ids is None:
            return bpe_backend(self.vocab.tokens, self.merges, self.kind)
        raw = {self.vocab.raw[i] for i in ids}
        merges = [
            merge.decode()
            for merge in self.merges.split()
            if merge.replace(b" ", b"", 1) in raw and raw.issuperset(merge.split(b" ", 1))
        ]
        return bpe_backend([self.vocab.spell(i) for i in ids], merges, self.kind, ids=ids)

    def spell(self, token_id: int) -> str:
        return self.vocab.spell(token_id)

    def spelled(self, text: str) -> str | None:
        if self.kind.compose and not unicodedata.is_normalized("NFC", text):
            return None
        spell = {byte: character for character, byte in byte_alphabet().items()}
        return "".join(spell[byte] for byte in text.encode("utf-8", "replace"))


def _byte_level(vocab: Vocabulary) -> _ByteLevel:
    merges, pre = vocab.get("merges"), vocab.get("pre", "default")
    if not isinstance(merges, StringArray):
        raise CheckpointError(f"{vocab.where}: the metadata lacks {PREFIX}merges")
    kind = KINDS.get(pre)
    if kind is None:
        raise CheckpointError(
            f"{vocab.where} splits text in the way {pre!r}, which is not known",
            hint=OTHER_TOKENIZER,
        )
    return _ByteLevel(vocab, merges.copy(), kind)


def _right_strips(vocab: Vocabulary) -> frozenset[int]:
    """Phi-3's SentencePiece tokenizer swallows spaces after its marks; the format has no word for
    it, so llama.cpp goes by the model too."""
    if vocab.architecture != "phi3" or not vocab.of_kind(BYTE):
        return frozenset()
    keep = {"<unk>", "<s>", "<|endoftext|>"}
    marks = vocab.of_kind(CONTROL, USER_DEFINED)
    return frozenset(i for i in marks if vocab.spell(i) not in keep)


def _chat_templates(metadata: Mapping[str, Value]) -> dict[str, str]:
    found = {}
    for key, value in metadata.items():
        if key.startswith("tokenizer.chat_template") and isinstance(value, str):
            name = key.removeprefix("tokenizer.chat_template").removeprefix(".")
            found[name or "default"] = value
    return found
