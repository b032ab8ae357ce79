"""SentencePiece's own file, tokenizer.model: a protocol buffer of pieces with scores and kinds.

Source: sentencepiece_model.proto.  Only BPE models are read, which is what language models that
come without a tokenizer.json are.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import tokenizers

from allmetal.errors import CheckpointError
from allmetal.text.spm import NORMAL, add_marked_tokens, cached_pairs, spm_backend

_BPE = 2
_HINT = (
    "transformers makes a tokenizer.json of it:"
    " AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)"
)


@dataclass(slots=True)
class SentencePieceModel:
    """The fields of the file that decide how text is cut; defaults are the format's."""

    pieces: list[str] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    kinds: list[int] = field(default_factory=list)
    model_type: int = 1
    unk_id: int = 0
    add_dummy_prefix: bool = True
    remove_extra_whitespaces: bool = True
    charsmap: bytes = b""


def read_spm(path: Path) -> SentencePieceModel:
    """Raises CheckpointError where the file is no SentencePiece model."""
    model = SentencePieceModel()
    try:
        for number, value in _fields(path.read_bytes()):
            match number, value:
                case 1, bytes():
                    _read_piece(model, value)
                case 2, bytes():
                    _read_trainer(model, value)
                case 3, bytes():
                    _read_normalizer(model, value)
    except (IndexError, ValueError, struct.error) as e:
        raise CheckpointError(f"{path} is no SentencePiece model: {e}", hint=_HINT) from e
    if not model.pieces:
        raise CheckpointError(f"{path} is no SentencePiece model: it has no pieces", hint=_HINT)
    return model


def spm_file_backend(path: Path) -> tokenizers.Tokenizer:
    """Raises CheckpointError for a model that cuts text in a way the library is not told here."""
    model = read_spm(path)
    for wrong, what in (
        (model.model_type != _BPE, "it is no BPE model"),
        (bool(model.charsmap), "it rewrites characters first"),
        (model.remove_extra_whitespaces, "it removes spaces first"),
    ):
        if wrong:
            raise CheckpointError(f"{path} is not read: {what}", hint=_HINT)
    kinds = np.array(model.kinds, np.int32)
    backend = spm_backend(
        model.pieces,
        cached_pairs(model.pieces, np.array(model.scores, np.float32), kinds),
        model.kinds,
        unknown=model.pieces[model.unk_id],
        space_prefix=model.add_dummy_prefix,
    )
    add_marked_tokens(backend, model.pieces, model.kinds, space_prefix=model.add_dummy_prefix)
    return backend


def _read_piece(model: SentencePieceModel, raw: bytes) -> None:
    piece, score, kind = "", 0.0, NORMAL
    for number, value in _fields(raw):
        match number, value:
            case 1, bytes():
                piece = value.decode()
            case 2, float():
                score = value
            case 3, int():
                kind = value
    model.pieces.append(piece)
    model.scores.append(score)
    model.kinds.append(kind)


def _read_trainer(model: SentencePieceModel, raw: bytes) -> None:
    for number, value in _fields(raw):
        if number == 3 and isinstance(value, int):
            model.model_type = value
        elif number == 40 and isinstance(value, int):
            model.unk_id = value


def _read_normalizer(model: SentencePieceModel, raw: bytes) -> None:
    for number, value in _fields(raw):
        match number, value:
            case 2, bytes():
                model.charsmap = value
            case 3, int():
                model.add_dummy_prefix = bool(value)
            case 4, int():
                model.remove_extra_whitespaces = bool(value)


def _fields(raw: bytes) -> Iterator[tuple[int, int | float | bytes]]:
    """(field number, value) of a message; 32-bit values are floats, as all here are."""
    pos = 0
    while pos < len(raw):
        tag, pos = _varint(raw, pos)
        match tag & 7:
            case 0:
                value, pos = _varint(raw, pos)
                yield tag >> 3, value
            case 1:
                yield tag >> 3, struct.unpack_from("<d", raw, pos)[0]
                pos += 8
            case 2:
                length, pos = _varint(raw, pos)
                if pos + length > len(raw):
                    raise ValueError("it is cut short")
                yield tag >> 3, raw[pos : pos + length]
                pos += length
            case 5:
                yield tag >> 3, struct.unpack_from("<f", raw, pos)[0]
                pos += 4
            case other:
                raise ValueError(f"wire type {other} at byte {pos}")


def _varint(raw: bytes, pos: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = raw[pos]
        pos += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, pos
        shift += 7
        if shift > 63:
            raise ValueError(f"a number without an end at byte {pos}")
