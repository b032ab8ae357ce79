"""SentencePiece's vocabularies, from its own file and from GGUF, cut text as SentencePiece does."""

from __future__ import annotations

import io
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import gguf
import gguf_files
import numpy as np
import pytest
import sentencepiece
from small_tokenizers import CORPUS

from allmetal.checkpoint.gguf.reader import GGUFFile
from allmetal.errors import CheckpointError
from allmetal.text import late, load_tokenizer
from allmetal.text.folder import folder_parts
from allmetal.text.gguf import gguf_parts
from allmetal.text.spm import cached_pairs, pairs_from_scores
from allmetal.text.spm_model import read_spm
from allmetal.text.tokenizer import Tokenizer

WORDS = [
    "the",
    "Quick",
    "brown",
    "naïve",
    "café",
    "你好",
    "世界",
    "🙂",
    "👨‍👩‍👧",
    "\n",
    "\n\n",
    "\t",
]
WORDS += ["3.14159", "x+1", "<0x41>", "▁", "é", "zq", "ﬁ", "\u00a0", "\r\n", "<sep>", "Привет"]


def random_texts(count: int, *, longest_run: int, seed: int = 0) -> list[str]:
    rng = random.Random(seed)
    texts = ["", " ", "a", " a", "a "]
    for _ in range(count):
        parts = rng.choices(WORDS, k=rng.randint(1, 8))
        gaps = [" " * rng.choice([0, 1, 1, 2, rng.randint(0, longest_run)]) for _ in parts]
        noise = "".join(chr(rng.randint(1, 0x2FFF)) for _ in range(rng.choice([0, 0, 3])))
        texts.append("".join(gap + part for gap, part in zip(gaps, parts, strict=True)) + noise)
    return texts


@dataclass(frozen=True, slots=True)
class Trained:
    theirs: sentencepiece.SentencePieceProcessor
    folder: Path
    gguf: Path
    prefix: bool


def train(folder: Path, *, prefix: bool, runs: int = 0, kind: str = "bpe") -> bytes:
    """`runs`: runs of two to so many spaces are tokens of their own, as Gemma has them."""
    out = io.BytesIO()
    spaces = ["▁" * n for n in range(2, runs + 1)]
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(line for text in CORPUS for line in text.split("\n")),
        model_writer=out,
        vocab_size=520,
        model_type=kind,
        byte_fallback=True,
        character_coverage=0.98,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        add_dummy_prefix=prefix,
        user_defined_symbols=[*spaces, "<sep>"],
        control_symbols=["<|turn|>"],
        hard_vocab_limit=False,
        minloglevel=2,
    )
    (folder / "tokenizer.model").write_bytes(out.getvalue())
    return out.getvalue()


def write_gguf(path: Path, model: sentencepiece.SentencePieceProcessor, *, prefix: bool) -> Path:
    """As the converter's _create_vocab_sentencepiece does."""
    tokens, scores, kinds = [], [], []
    for i in range(model.vocab_size()):
        kind = 1
        if model.IsUnknown(i):
            kind = 2
        elif model.IsControl(i):
            kind = 3
        elif model.IsByte(i):
            kind = 6
        elif "▁▁" in model.IdToPiece(i) or model.IdToPiece(i) == "<sep>":
            kind = 4
        piece = model.IdToPiece(i)
        tokens.append(piece.replace("▁", " ") if kind == 4 else piece)
        scores.append(model.GetScore(i))
        kinds.append(kind)
    writer = gguf.GGUFWriter(str(path), "llama")
    gguf_files.write_vocabulary(
        writer,
        "llama",
        tokens,
        scores=scores,
        kinds=kinds,
        ids={"bos": model.bos_id(), "eos": model.eos_id(), "unknown": model.unk_id()},
        add_space_prefix=prefix,
        add_bos_token=True,
    )
    gguf_files.finish(writer)
    return path


@pytest.fixture(scope="module", params=["llama", "gemma"])
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    folder = tmp_path_factory.mktemp(request.param)
    prefix = request.param == "llama"
    proto = train(folder, prefix=prefix, runs=0 if prefix else 6)
    theirs = sentencepiece.SentencePieceProcessor(model_proto=proto)
    return Trained(theirs, folder, write_gguf(folder / "m.gguf", theirs, prefix=prefix), prefix)


@pytest.fixture(params=["tokenizer.model", "gguf", "gguf, late"])
def ours(
    request: pytest.FixtureRequest, trained: Trained, monkeypatch: pytest.MonkeyPatch
) -> Tokenizer:
    if request.param == "gguf":
        return load_tokenizer(trained.gguf)
    if request.param == "gguf, late":
        monkeypatch.setattr(late, "NUM_TEXTS", 10_000)
        return load_tokenizer(trained.gguf, late=True)
    return Tokenizer(folder_parts(trained.folder))


def sayable(text: str, trained: Trained) -> str:
    """Behind a token in the text, a prefix is put again: so do llama.cpp and the models' own
    tokenizer.json, where SentencePiece itself does not."""
    return text.replace("<sep>", "<sap>") if trained.prefix else text


def test_random_texts_are_cut_the_same(trained: Trained, ours: Tokenizer) -> None:
    texts = [sayable(text, trained) for text in random_texts(800, longest_run=15)]

    different = [
        (text, trained.theirs.encode(text), got)
        for text in texts
        if trained.theirs.encode(text) != (got := ours.encode(text, add_special_tokens=False))
    ]

    assert different == []


def test_texts_come_back(trained: Trained, ours: Tokenizer) -> None:
    for text in random_texts(200, longest_run=5, seed=1):
        text = sayable(text, trained)
        assert trained.theirs.decode(trained.theirs.encode(text)) == ours.decode(
            ours.encode(text, add_special_tokens=False)
        )


def test_a_text_starts_with_bos(trained: Trained, ours: Tokenizer) -> None:
    ids = ours.encode("a")

    assert trained.theirs.bos_id() == ids[0] == ours.bos_token_id
    assert trained.theirs.eos_id() in ours.eos_token_ids


def test_control_tokens_in_a_text_are_themselves(ours: Tokenizer) -> None:
    ids = ours.encode("a<|turn|>b", add_special_tokens=False)

    assert "<|turn|>" in [ours.token(i) for i in ids]
    assert "<|turn|>" not in ours.decode(ids)
    assert "<|turn|>" in ours.decode(ids, skip_special_tokens=False)


def test_pairs_are_kept_on_disk_by_content(
    trained: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    import allmetal.text.spm as spm

    calls: list[int] = []

    def counted(tokens: Sequence[str], scores: Sequence[float], kinds: Sequence[int]) -> spm.Pairs:
        calls.append(len(tokens))
        return pairs_from_scores(tokens, scores, kinds)

    monkeypatch.setattr(spm, "pairs_from_scores", counted)
    model = read_spm(trained.folder / "tokenizer.model")
    scores, kinds = np.array(model.scores, np.float32), np.array(model.kinds, np.int32)

    first = cached_pairs(model.pieces, scores, kinds)
    again = cached_pairs(model.pieces, scores, kinds)
    assert np.array_equal(first, again)
    assert len(calls) == 1

    cached_pairs(model.pieces, scores + 1, kinds)
    assert len(calls) == 2


def test_a_damaged_cache_is_made_again(trained: Trained) -> None:
    from allmetal.config import cache_dir

    expected = load_tokenizer(trained.gguf).encode("the quick brown fox")
    [file] = (cache_dir() / "tokenizers").glob("*.npy")
    file.write_bytes(file.read_bytes()[:100])

    assert expected == load_tokenizer(trained.gguf).encode("the quick brown fox")


def test_a_cache_that_cannot_be_written_does_no_harm(
    trained: Trained, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ALLMETAL_CACHE", str(tmp_path / "file"))

    assert load_tokenizer(trained.gguf).encode("the")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "has no pieces"),
        (b"\x0a\xff\xff", "no SentencePiece model"),
        (b"not a protocol buffer", "no SentencePiece model"),
    ],
)
def test_another_file_is_told_from_a_model(content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.model").write_bytes(content)

    with pytest.raises(CheckpointError, match=message):
        folder_parts(tmp_path)


def test_a_unigram_model_is_refused(tmp_path: Path) -> None:
    train(tmp_path, prefix=True, kind="unigram")

    with pytest.raises(CheckpointError, match="it is no BPE model") as raised:
        folder_parts(tmp_path)
    assert "save_pretrained" in (raised.value.hint or "")


def test_the_metadata_of_a_gguf_file_is_enough(trained: Trained) -> None:
    file = GGUFFile(trained.gguf)
    assert gguf_parts(file.metadata, "m.gguf").special_tokens["bos_token"] == "<s>"
