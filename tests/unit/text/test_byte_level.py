"""Byte-level vocabularies from GGUF: words are cut as their families' tokenizers cut them."""

from __future__ import annotations

import json
import random
import unicodedata
from pathlib import Path
from typing import Any

import gguf
import gguf_files
import pytest
import regex
import transformers
from small_tokenizers import SPECIAL, byte_level

from allmetal.errors import CheckpointError
from allmetal.text import late, load_tokenizer
from allmetal.text.bpe import KINDS, bpe_backend
from allmetal.text.pieces import byte_alphabet
from allmetal.text.tokenizer import Tokenizer

# As llama-vocab.cpp and the families' own files state them.
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
CASES = "(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
LLAMA3 = (
    CASES + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2 = LLAMA3.replace("{1,3}", "")
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
GPT4O = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+{CASES}?|[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*{CASES}?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
TEKKEN = GPT4O.replace(CASES + "?", "").replace("{1,3}", "")
EXPECTED = {
    "gpt-2": [GPT2],
    "smollm": [r"\p{N}", GPT2],
    "llama-bpe": [LLAMA3],
    "dbrx": [LLAMA3],
    "chatglm-bpe": [LLAMA3],
    "qwen2": [QWEN2],
    "stablelm2": [QWEN2],
    "tekken": [TEKKEN],
    "gpt-4o": [GPT4O],
}
WORDS = [
    "the",
    "McDONALD'S",
    "it's",
    "IT'LL",
    "naïve",
    "cafe\u0301",
    "你好",
    "世界",
    "🙂",
    "ÅÄ",
    "ǅ",
]
WORDS += [
    "\n",
    "\n\n",
    "\t",
    "\r\n",
    "3.14159",
    "12345678",
    "x+=1;",
    "//",
    "…",
    "<s>",
    "²",
    "\u00a0",
]

ASSIGNED = [chr(c) for c in range(1, 0x3000) if unicodedata.category(chr(c)) != "Cn"]


def random_texts(count: int, seed: int = 0) -> list[str]:
    rng = random.Random(seed)
    texts = ["", " ", "  ", "a", " a", "a  ", "\n a"]
    for _ in range(count):
        parts = rng.choices(WORDS, k=rng.randint(1, 9))
        gaps = [" " * rng.choice([0, 1, 1, 2, 5]) for _ in parts]
        # Characters that newer Unicode versions assign are letters to one library only.
        noise = "".join(rng.choices(ASSIGNED, k=rng.choice([0, 0, 4])))
        texts.append("".join(part + gap for gap, part in zip(gaps, parts, strict=True)) + noise)
    return texts


def cut(text: str, patterns: list[str]) -> list[str]:
    """Each pattern in turn cuts what is left of the text between the matches before it."""
    parts = [text]
    for pattern in patterns:
        found = []
        for part in parts:
            last = 0
            for match in regex.finditer(pattern, part):
                found += [part[last : match.start()], match[0]]
                last = match.end()
            found.append(part[last:])
        parts = [part for part in found if part]
    return parts


@pytest.mark.parametrize("pre", EXPECTED)
def test_words_are_cut_by_the_familys_pattern(pre: str) -> None:
    backend = bpe_backend(list(byte_alphabet()), [], KINDS[pre])
    assert backend.pre_tokenizer is not None

    for text in random_texts(400):
        spelled = [word for word, _ in backend.pre_tokenizer.pre_tokenize_str(text)]
        words = [bytes(byte_alphabet()[c] for c in word).decode() for word in spelled]
        assert cut(text, EXPECTED[pre]) == words


def write(path: Path, pre: str, *, template: str = "", **flags: bool) -> Path:
    """The small tokenizer's vocabulary and merges, as the converter writes them."""
    backend = byte_level()
    model = json.loads(backend.to_str())["model"]
    ids: dict[str, int] = model["vocab"]
    tokens = sorted(ids, key=lambda token: ids[token])
    writer = gguf.GGUFWriter(str(path), "qwen2")
    gguf_files.write_vocabulary(
        writer,
        "gpt2",
        tokens,
        kinds=[3 if token in SPECIAL else 1 for token in tokens],
        merges=[" ".join(merge) for merge in model["merges"]],
        pre=pre,
        ids={"bos": ids["<s>"], "eos": ids["</s>"]},
        **flags,
    )
    if template:
        writer.add_chat_template(template)
    gguf_files.finish(writer)
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("gguf")


@pytest.mark.parametrize("is_late", [False, True])
@pytest.mark.parametrize("pre", ["gpt-2", "llama-bpe", "qwen2", "tekken", "gpt-4o"])
def test_random_texts_become_the_tokens_transformers_makes(
    pre: str, is_late: bool, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(late, "NUM_TEXTS", 10_000)
    path = write(folder / f"{pre}.gguf", pre, add_bos_token=False)
    theirs = transformers.AutoTokenizer.from_pretrained(folder, gguf_file=path.name)
    ours = load_tokenizer(path, late=is_late)

    for text in random_texts(300, seed=1):
        # transformers leaves Qwen's composing of characters out for GGUF files.
        given = unicodedata.normalize("NFC", text) if pre == "qwen2" else text
        ids = ours.encode(text)
        assert theirs(given, add_special_tokens=False)["input_ids"] == ids
        assert theirs.decode(ids, skip_special_tokens=True) == ours.decode(ids)
        assert theirs.decode(ids) == ours.decode(ids, skip_special_tokens=False)


def test_qwen_composes_characters_first(folder: Path) -> None:
    ours = load_tokenizer(write(folder / "nfc.gguf", "qwen2"))

    assert ours.encode("café") == ours.encode("cafe\u0301")


@pytest.mark.parametrize(
    ("pre", "flags", "starts"),
    [
        ("llama-bpe", {}, True),
        ("llama-bpe", {"add_bos_token": False}, False),
        ("qwen2", {}, False),
        ("qwen2", {"add_bos_token": True}, True),
    ],
)
def test_bos_is_added_as_the_file_says_or_else_the_family(
    pre: str, flags: dict[str, bool], starts: bool, tmp_path: Path
) -> None:
    ours = load_tokenizer(write(tmp_path / "m.gguf", pre, **flags))

    assert (ours.encode("a")[0] == ours.bos_token_id) is starts
    assert ours.encode("a", add_special_tokens=False)[0] != ours.bos_token_id


def test_ends_are_known_by_number_and_by_text(tmp_path: Path) -> None:
    ours = load_tokenizer(write(tmp_path / "m.gguf", "qwen2"))

    ends = {ours.token(i) for i in ours.eos_token_ids}
    assert ends == {"</s>", "<|im_end|>"}


def test_the_chat_template_comes_with_the_file(tmp_path: Path) -> None:
    ours = load_tokenizer(
        write(tmp_path / "m.gguf", "qwen2", template="{{ messages[0].content }}!")
    )

    assert ours.apply_chat_template([{"role": "user", "content": "hi"}]) == "hi!"


def error(metadata: dict[str, Any], path: Path) -> CheckpointError:
    writer = gguf.GGUFWriter(str(path), "qwen2")
    model = metadata.pop("model", "gpt2")
    gguf_files.write_vocabulary(writer, model, metadata.pop("tokens", ["a", "b"]), **metadata)
    gguf_files.finish(writer)
    with pytest.raises(CheckpointError) as raised:
        load_tokenizer(path)
    return raised.value


def test_what_is_not_read_says_so(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"

    e = error({"pre": "martian", "merges": ["a b"]}, path)
    assert "splits text in the way 'martian'" in e.message
    assert "--tokenizer" in (e.hint or "")
    assert "lacks tokenizer.ggml.merges" in error({}, path).message
    assert "of the kind 'rwkv'" in error({"model": "rwkv"}, path).message
    assert "one entry a token" in error({"kinds": [1, 1, 1]}, path).message


def test_equal_spellings_keep_their_numbers(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(str(tmp_path / "m.gguf"), "qwen2")
    gguf_files.write_vocabulary(writer, "gpt2", ["a", "b", "a", "ab"], merges=["a b"], pre="gpt-2")
    gguf_files.finish(writer)

    ours: Tokenizer = load_tokenizer(tmp_path / "m.gguf")

    assert ours.vocab_size == 4
    assert ours.encode("aba") == [3, 0]
