"""Tokenizers of Hugging Face folders, held against transformers' reading of the same files."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from small_tokenizers import BACKENDS, CORPUS
from tokenizers.processors import TemplateProcessing
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from allmetal.checkpoint.dummy import DummyCheckpoint
from allmetal.config import EngineConfig
from allmetal.errors import CheckpointError, RequestError
from allmetal.text import load_tokenizer
from allmetal.text.folder import folder_parts
from allmetal.text.tokenizer import Tokenizer


def save(folder: Path, kind: str = "byte-level", **settings: Any) -> PreTrainedTokenizerFast:
    """As transformers writes it, then with `settings` changed in tokenizer_config.json."""
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=BACKENDS[kind](), bos_token="<s>", eos_token="</s>", pad_token="<pad>"
    )
    tokenizer.save_pretrained(folder)
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | settings))
    (folder / "config.json").write_text('{"model_type": "llama"}')  # transformers looks for it
    loaded: PreTrainedTokenizerFast = AutoTokenizer.from_pretrained(folder)
    return loaded


def ours(folder: Path) -> Tokenizer:
    return Tokenizer(folder_parts(folder))


def texts(count: int) -> list[str]:
    rng = random.Random(0)
    words = [
        *CORPUS[0].split(),
        *CORPUS[1].split(),
        "</s>",
        "<|im_start|>",
        "\n",
        "  ",
        "🦊",
        "\x00",
    ]
    return ["", " ", *(" ".join(rng.choices(words, k=rng.randint(1, 9))) for _ in range(count))]


@pytest.mark.parametrize("kind", BACKENDS)
def test_texts_become_the_tokens_transformers_makes(kind: str, tmp_path: Path) -> None:
    theirs = save(tmp_path, kind)
    mine = ours(tmp_path)

    assert len(theirs) == mine.vocab_size
    for text in texts(200):
        ids = mine.encode(text)
        assert theirs.encode(text) == ids
        for skip in (True, False):
            assert theirs.decode(ids, skip_special_tokens=skip) == mine.decode(ids, skip)


@pytest.mark.parametrize("ends", ["$A", "<s> $A", "<s> $A </s>"])
@pytest.mark.parametrize("stated", [True, False, None])
def test_tokenizer_json_alone_says_what_is_put_around_a_text(
    ends: str, stated: bool | None, tmp_path: Path
) -> None:
    """add_bos_token beside it means nothing: so does transformers read it."""
    settings = {} if stated is None else {"add_bos_token": stated, "add_eos_token": stated}
    save(tmp_path, **settings)
    backend = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    backend.post_processor = TemplateProcessing(
        single=ends, special_tokens=[("<s>", 0), ("</s>", 1)]
    )
    backend.save(str(tmp_path / "tokenizer.json"))

    ids = ours(tmp_path).encode("the end")

    assert AutoTokenizer.from_pretrained(tmp_path).encode("the end") == ids
    assert (ids[0] == 0, ids[-1] == 1) == ("<s>" in ends, "</s>" in ends)


def test_padding_and_truncation_left_in_the_file_do_not_reach_prompts(tmp_path: Path) -> None:
    save(tmp_path)
    path = tmp_path / "tokenizer.json"
    saved = json.loads(path.read_text())
    saved["truncation"] = {
        "direction": "Right",
        "max_length": 4,
        "strategy": "LongestFirst",
        "stride": 0,
    }
    path.write_text(json.dumps(saved))

    assert len(ours(tmp_path).encode("The quick brown fox jumps over the lazy dog.")) > 4


def test_tokens_that_only_the_config_knows_are_added(tmp_path: Path) -> None:
    save(tmp_path)
    size = ours(tmp_path).vocab_size
    path = tmp_path / "tokenizer_config.json"
    added = {str(size): {"content": "<|new|>", "special": True, "normalized": False}}
    settings = json.loads(path.read_text())
    path.write_text(json.dumps(settings | {"added_tokens_decoder": added}))

    assert size in ours(tmp_path).encode("a<|new|>b")

    moved = {str(size + 7): added[str(size)]}
    path.write_text(json.dumps(settings | {"added_tokens_decoder": moved}))
    with pytest.raises(
        CheckpointError, match=rf"the id {size + 7}, tokenizer.json makes it {size}"
    ):
        ours(tmp_path)


# ---- chat templates ------------------------------------------------------------------------


def from_config(folder: Path) -> None:
    save(folder, chat_template="config")


def from_list(folder: Path) -> None:
    named = [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "config"}]
    save(folder, chat_template=named)


def from_file(folder: Path) -> None:
    save(folder, chat_template="not this one")
    (folder / "chat_template.jinja").write_text("config")


def from_json(folder: Path) -> None:
    save(folder)
    (folder / "chat_template.json").write_text('{"chat_template": "config"}')


@pytest.mark.parametrize("write", [from_config, from_list, from_file, from_json])
def test_the_chat_template_is_found(write: Callable[[Path], None], tmp_path: Path) -> None:
    write(tmp_path)

    assert ours(tmp_path).chat_template == "config"


def test_named_templates_have_files_of_their_own(tmp_path: Path) -> None:
    save(tmp_path)
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates" / "tool_use.jinja").write_text("tools")

    tokenizer = ours(tmp_path)
    assert tokenizer.chat_template is None
    with pytest.raises(RequestError, match="it has tool_use"):
        tokenizer.apply_chat_template([])


def test_a_template_file_replaces_the_models(tmp_path: Path) -> None:
    save(tmp_path, chat_template="config")
    file = tmp_path / "mine.jinja"
    file.write_text("mine")

    config = EngineConfig(model=str(tmp_path), chat_template=str(file))
    assert load_tokenizer(tmp_path, config).chat_template == "mine"

    config = EngineConfig(model=str(tmp_path), chat_template=str(tmp_path / "none"))
    with pytest.raises(CheckpointError, match="cannot be read"):
        load_tokenizer(tmp_path, config)


# ---- what ends a text ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Ends:
    generation: dict[str, Any]
    config: dict[str, Any]
    expected: tuple[int, ...]


ENDS = [
    Ends({"eos_token_id": [7, 9]}, {"eos_token_id": 5}, (7, 9, 1)),
    Ends({"eos_token_id": 1}, {}, (1,)),
    Ends({}, {"eos_token_id": 5}, (5, 1)),
    Ends({}, {"text_config": {"eos_token_id": [5, 6]}}, (5, 6, 1)),
    Ends({}, {}, (1,)),
]


@pytest.mark.parametrize("case", ENDS)
def test_all_that_ends_a_text_is_gathered(case: Ends, tmp_path: Path) -> None:
    save(tmp_path)
    checkpoint = DummyCheckpoint(tmp_path, case.config, case.generation)

    assert case.expected == load_tokenizer(checkpoint).eos_token_ids


# ---- other places, and errors --------------------------------------------------------------


def test_another_tokenizer_may_be_named(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    theirs = save(tmp_path / "other", "sentencepiece")

    for name in (tmp_path / "other", tmp_path / "other" / "tokenizer.json"):
        config = EngineConfig(model=str(tmp_path / "model"), tokenizer=str(name))
        tokenizer = load_tokenizer(tmp_path / "model", config)
        assert theirs.encode("the lazy dog") == tokenizer.encode("the lazy dog")


def test_a_folder_without_a_tokenizer_says_so(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"has no tokenizer\.json") as raised:
        ours(tmp_path)
    assert "--tokenizer" in (raised.value.hint or "")


def test_a_damaged_tokenizer_is_named(tmp_path: Path) -> None:
    save(tmp_path)
    path = tmp_path / "tokenizer.json"
    path.write_text(path.read_text()[:-100])

    with pytest.raises(CheckpointError, match=r"tokenizer\.json cannot be read"):
        ours(tmp_path)


def test_what_is_no_text_is_the_requests_fault(tmp_path: Path) -> None:
    save(tmp_path)

    with pytest.raises(RequestError, match="no text"):
        ours(tmp_path).encode("a\ud800b")


def test_each_token_gives_its_bytes(tmp_path: Path) -> None:
    save(tmp_path)
    tokenizer = ours(tmp_path)

    ids = tokenizer.encode("naïve 🙂")
    assert "naïve 🙂".encode() == b"".join(tokenizer.token_bytes(i) for i in ids)
    assert tokenizer.token_bytes(10**6) == b""
