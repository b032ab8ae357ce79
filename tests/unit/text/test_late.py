"""A vocabulary that is worked in late."""

from __future__ import annotations

from pathlib import Path

import gguf
import gguf_files
import pytest

from allmetal.checkpoint.gguf.reader import GGUFFile
from allmetal.text import late, load_tokenizer
from allmetal.text.gguf import gguf_parts
from allmetal.text.late import LateBackend


def spaced(path: Path) -> Path:
    """Runs of spaces are tokens, stored with spaces, and found once spaces are spelled "▁"."""
    tokens = ["<unk>", "<s>", "▁", "a", "  ", "   ", *(f"<0x{i:02X}>" for i in range(256))]
    kinds = [2, 3, 1, 1, 4, 4] + [6] * 256
    writer = gguf.GGUFWriter(str(path), "gemma3")
    gguf_files.write_vocabulary(
        writer,
        "llama",
        tokens,
        scores=[0.0] * len(tokens),
        kinds=kinds,
        ids={"bos": 1, "unknown": 0},
        add_space_prefix=False,
    )
    gguf_files.finish(writer)
    return path


@pytest.mark.parametrize("text", ["a  a", " ▁ ", "▁▁a", "▁ a", "", "é", "<s>a <s> "])
def test_spaces_are_found_in_either_spelling(text: str, tmp_path: Path) -> None:
    path = spaced(tmp_path / "m.gguf")

    assert load_tokenizer(path).encode(text) == load_tokenizer(path, late=True).encode(text)


def test_the_whole_is_made_for_a_long_text_and_after_many(tmp_path: Path) -> None:
    path = spaced(tmp_path / "m.gguf")

    def whole(texts: list[str]) -> bool:
        backend = gguf_parts(GGUFFile(path).metadata, "m.gguf", late=True).backend
        assert isinstance(backend, LateBackend)
        last = [backend.for_text(text) for text in texts][-1]
        return last is backend.whole()

    assert not whole(["a"] * late.NUM_TEXTS)
    assert whole(["a"] * (late.NUM_TEXTS + 1))
    assert not whole(["a" * late.LONGEST])
    assert whole(["a" * (late.LONGEST + 1)])


def test_a_late_tokenizer_knows_of_every_token_before_it_is_whole(tmp_path: Path) -> None:
    path = spaced(tmp_path / "m.gguf")
    now, later = load_tokenizer(path), load_tokenizer(path, late=True)

    ids = range(now.vocab_size + 2)
    assert now.vocab_size == later.vocab_size
    assert now.special_ids == later.special_ids
    assert now.bos_token_id == later.bos_token_id
    assert [now.token(i) for i in ids] == [later.token(i) for i in ids]
    assert [now.token_bytes(i) for i in ids] == [later.token_bytes(i) for i in ids]
