"""The GGUF container, and what is said when it is cut short or contradicts itself."""

from __future__ import annotations

import contextlib
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import gguf_files
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from allmetal.checkpoint import open_checkpoint
from allmetal.checkpoint.gguf.checkpoint import GGUFCheckpoint, parts
from allmetal.checkpoint.gguf.names import to_hugging_face
from allmetal.checkpoint.gguf.reader import GGUFFile, StringArray
from allmetal.checkpoint.gguf.rope import llama3_factors, rope_scaling
from allmetal.config import EngineConfig
from allmetal.errors import AllmetalError, CheckpointError, UnknownModelError

HIDDEN, VOCAB = 32, 10


def write_tiny(path: Path, arch: str = "llama", *, kind: str = "F32", **skip: Any) -> Path:
    """A model of one layer; `skip` leaves a tensor out."""
    writer = gguf.GGUFWriter(str(path), arch)
    writer.add_context_length(64)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(1)
    writer.add_feed_forward_length(64)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(1e4)
    tokens = [f"t{i}" for i in range(VOCAB)]
    gguf_files.write_vocabulary(writer, "llama", tokens, ids={"bos": 1, "eos": 2, "eot": 3})
    rng = np.random.default_rng(0)
    for name, shape in {
        "token_embd.weight": (VOCAB, HIDDEN),
        "output_norm.weight": (HIDDEN,),
        "blk.0.attn_q.weight": (HIDDEN, HIDDEN),
    }.items():
        if name not in skip:
            values = rng.standard_normal(shape).astype(np.float32)
            gguf_files.add_tensor(writer, name, values, kind)
    gguf_files.finish(writer)
    return path


def error(action: Callable[[], object]) -> AllmetalError:
    with pytest.raises(AllmetalError) as raised:
        action()
    return raised.value


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_tiny(tmp_path / "m.gguf")


def test_metadata_and_tensors_are_what_the_package_reads(path: Path) -> None:
    expected = gguf.GGUFReader(path)

    actual = GGUFFile(path)

    assert {
        t.name: (tuple(map(int, t.shape[::-1])), t.tensor_type.name) for t in expected.tensors
    } == {name: (t.shape, t.type) for name, t in actual.tensors.items()}
    for tensor in expected.tensors:
        assert tensor.data.tobytes() == bytes(actual.data(tensor.name))
    for key, stated in expected.fields.items():
        if key.startswith("GGUF."):
            continue
        value = actual.metadata[key]
        if isinstance(value, StringArray | np.ndarray):
            assert stated.contents() == list(value)
        else:
            assert stated.contents() == pytest.approx(value)


def test_every_type_of_metadata_value_is_read(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(str(tmp_path / "m.gguf"), "llama")
    scalars: dict[str, tuple[Callable[[str, Any], None], Any]] = {
        "u8": (writer.add_uint8, 200),
        "i8": (writer.add_int8, -100),
        "u16": (writer.add_uint16, 60000),
        "i16": (writer.add_int16, -30000),
        "u32": (writer.add_uint32, 4_000_000_000),
        "i32": (writer.add_int32, -2_000_000_000),
        "f32": (writer.add_float32, 1e-6),
        "u64": (writer.add_uint64, 1 << 63),
        "i64": (writer.add_int64, -(1 << 62)),
        "f64": (writer.add_float64, 1e-300),
        "bool": (writer.add_bool, True),
        "text": (writer.add_string, "ä🙂"),
        "strings": (writer.add_array, ["a", "", "ä🙂"]),
        "ints": (writer.add_array, [1, -2, 3]),
        "bools": (writer.add_array, [True, False]),
    }
    for key, (add, value) in scalars.items():
        add(key, value)
    gguf_files.finish(writer)

    actual = GGUFFile(tmp_path / "m.gguf").metadata

    for key, (_, value) in scalars.items():
        read = actual[key]
        assert value == (list(read) if isinstance(value, list) else read), key  # type: ignore[arg-type]


def test_a_float32_is_the_decimal_that_was_meant(path: Path) -> None:
    assert GGUFFile(path).metadata["llama.attention.layer_norm_rms_epsilon"] == 1e-6


def test_a_checkpoint_speaks_hugging_faces_words(path: Path) -> None:
    checkpoint = open_checkpoint(EngineConfig(model=str(path)))

    assert checkpoint.format == "gguf"
    assert checkpoint.config["model_type"] == "llama"
    assert checkpoint.config["vocab_size"] == VOCAB
    assert checkpoint.config["tie_word_embeddings"] is True
    assert checkpoint.generation_config == {"eos_token_id": [2, 3]}
    assert set(checkpoint.tensors) == {
        "model.embed_tokens.weight",
        "model.norm.weight",
        "model.layers.0.self_attn.q_proj.weight",
    }
    assert checkpoint.tensors["model.layers.0.self_attn.q_proj.weight"].paired_heads == 4
    assert checkpoint.tensors["model.embed_tokens.weight"].paired_heads == 0


def test_a_vocabulary_of_a_quarter_million_is_parsed_in_a_moment(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(str(tmp_path / "m.gguf"), "llama")
    writer.add_token_list([f"token {i}" for i in range(262_144)])
    gguf_files.finish(writer)

    before = time.process_time()
    file = GGUFFile(tmp_path / "m.gguf")
    spent = time.process_time() - before

    assert spent < 0.5
    tokens = file.metadata["tokenizer.ggml.tokens"]
    assert isinstance(tokens, StringArray)
    assert tokens.decode()[-1] == "token 262143"


def test_a_file_cut_anywhere_is_refused(path: Path) -> None:
    whole = path.read_bytes()
    for size in [0, 3, 4, 7, 23, 24, 40, 100, 300, len(whole) // 2, len(whole) - 64]:
        path.write_bytes(whole[:size])
        e = error(lambda: GGUFFile(path))
        assert isinstance(e, CheckpointError), size
        assert str(path) in e.message


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_damaged_bytes_raise_our_own_error_or_none(data: st.DataObject, path: Path) -> None:
    whole = bytearray(path.read_bytes())
    head = len(whole) - 3 * 4 * HIDDEN  # the header and some tensor data
    for _ in range(data.draw(st.integers(1, 4))):
        whole[data.draw(st.integers(0, head))] = data.draw(st.integers(0, 255))
    damaged = path.with_name("damaged.gguf")
    damaged.write_bytes(whole)

    with contextlib.suppress(AllmetalError):
        GGUFCheckpoint(damaged).close()


def test_another_kind_of_file_is_told_by_its_first_bytes(path: Path) -> None:
    path.write_bytes(b"PK\x03\x04" + bytes(100))

    assert "is not a GGUF file: it starts with b'PK" in error(lambda: GGUFFile(path)).message


def patched(path: Path, at: int, value: bytes) -> Path:
    raw = bytearray(path.read_bytes())
    raw[at : at + len(value)] = value
    path.write_bytes(raw)
    return path


def test_other_versions_are_refused(path: Path) -> None:
    patched(path, 4, struct.pack("<I", 1))
    assert "GGUF version 1" in error(lambda: GGUFFile(path)).message
    patched(path, 4, struct.pack(">I", 3))
    assert "big-endian" in error(lambda: GGUFFile(path)).message


@pytest.mark.parametrize("at", [8, 16])
def test_counts_that_no_file_can_hold_are_not_believed(path: Path, at: int) -> None:
    patched(path, at, struct.pack("<Q", 1 << 61))

    assert "more than" in error(lambda: GGUFFile(path)).message


def table_entry(path: Path, name: str) -> int:
    """Where a tensor's number of dims is in the file."""
    raw = path.read_bytes()
    return raw.index(struct.pack("<Q", len(name)) + name.encode()) + 8 + len(name)


def test_a_tensor_larger_than_the_file_is_noticed(path: Path) -> None:
    patched(path, table_entry(path, "token_embd.weight") + 4 + 8, struct.pack("<Q", 10_000))

    e = error(lambda: GGUFFile(path))
    assert "truncated: tensor 'token_embd.weight' ends at byte" in e.message
    assert "fetch it again" in (e.hint or "")


def test_an_unread_block_type_is_named(path: Path) -> None:
    patched(path, table_entry(path, "token_embd.weight") + 4 + 16, struct.pack("<I", 16))
    e = error(lambda: GGUFFile(path))
    assert "'token_embd.weight' is of the GGML type IQ2_XXS, which is not read" in e.message
    assert "Q4_K" in (e.hint or "")

    patched(path, table_entry(path, "token_embd.weight") + 4 + 16, struct.pack("<I", 999))
    assert "type number 999" in error(lambda: GGUFFile(path)).message


def test_rows_that_are_not_whole_blocks_are_refused(path: Path) -> None:
    patched(path, table_entry(path, "token_embd.weight") + 4 + 16, struct.pack("<I", 12))

    assert "whose blocks hold 256 values" in error(lambda: GGUFFile(path)).message


def test_architectures_that_are_not_read_are_listed(tmp_path: Path) -> None:
    e = error(lambda: GGUFCheckpoint(write_tiny(tmp_path / "m.gguf", "mamba")))

    assert isinstance(e, UnknownModelError)
    assert "'mamba'" in e.message
    assert "gemma3" in (e.hint or "")


def test_a_file_without_an_embedding_is_no_model(tmp_path: Path) -> None:
    path = write_tiny(tmp_path / "m.gguf", **{"token_embd.weight": True})

    assert "no tensor token_embd.weight" in error(lambda: GGUFCheckpoint(path)).message


def test_a_tensor_without_a_place_is_named(tmp_path: Path) -> None:
    path = write_tiny(tmp_path / "m.gguf")
    raw = path.read_bytes().replace(b"output_norm.weight", b"output_mess.weight")
    path.write_bytes(raw)

    assert "'output_mess.weight' has no place" in error(lambda: GGUFCheckpoint(path)).message


def test_the_parts_of_a_split_file_are_one_checkpoint(tmp_path: Path) -> None:
    for part, kept in ((1, "token_embd.weight"), (2, "output_norm.weight")):
        others = {"token_embd.weight", "output_norm.weight", "blk.0.attn_q.weight"} - {kept}
        name = f"m-0000{part}-of-00002.gguf"
        write_tiny(tmp_path / name, **dict.fromkeys(others, True))

    checkpoint = open_checkpoint(EngineConfig(model=str(tmp_path)))  # nothing else is there
    assert set(checkpoint.tensors) == {"model.embed_tokens.weight", "model.norm.weight"}
    assert len(checkpoint.data("model.norm.weight")) == 4 * HIDDEN

    (tmp_path / "m-00002-of-00002.gguf").unlink()
    e = error(lambda: parts(tmp_path / "m-00001-of-00002.gguf"))
    assert "lacks 1 of 2 parts: m-00002-of-00002.gguf" in e.message


def test_a_folder_with_several_models_asks_for_one(tmp_path: Path) -> None:
    for name in ("a.gguf", "b.gguf"):
        write_tiny(tmp_path / name)

    e = error(lambda: open_checkpoint(EngineConfig(model=str(tmp_path))))
    assert "several .gguf files: a.gguf, b.gguf" in e.message


def test_a_load_format_that_the_model_is_not_in_is_refused(path: Path) -> None:
    config = EngineConfig(model=str(path), load_format="safetensors")
    assert "is a .gguf file" in error(lambda: open_checkpoint(config)).message


def test_dummy_weights_take_the_config_from_a_gguf_file(path: Path) -> None:
    checkpoint = open_checkpoint(EngineConfig(model=str(path), load_format="dummy"))

    assert checkpoint.format == "dummy"
    assert checkpoint.config["hidden_size"] == HIDDEN


class _Factors:
    """What rope_scaling asks."""

    def __init__(self, factors: list[float]) -> None:
        self.factors = {"rope_freqs.weight": factors}

    def get(self, key: str, default: Any = None) -> Any:
        return default


def test_llama_3s_scaling_is_found_again_from_its_factors() -> None:
    config = {"rope_theta": 500000.0, "max_position_embeddings": 131072}
    stored = np.array(llama3_factors(64, 500000.0, 32.0), np.float32).tolist()

    expected = {
        "rope_type": "llama3",
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    assert expected == rope_scaling(_Factors(stored), config)
    assert rope_scaling(_Factors([1.0] * 64), config) is None

    other = rope_scaling(_Factors([1.0, 2.0, 2.5]), config)
    assert other is not None
    assert other["long_factor"] == other["short_factor"] == [1.0, 2.0, 2.5]
    assert other["attention_factor"] == 1.0


def test_names_of_other_models_are_not_guessed() -> None:
    def name(stored: str, arch: str) -> str | None:
        source = to_hugging_face(stored, arch, num_heads=4, num_kv_heads=2)
        return source.name if source else None

    assert name("blk.3.ffn_up.weight", "llama") == "model.layers.3.mlp.up_proj.weight"
    assert name("blk.3.ffn_up.weight", "phi3") == "model.layers.3.mlp.gate_up_proj.weight"
    assert name("blk.3.ffn_norm.weight", "gemma2").endswith("pre_feedforward_layernorm.weight")  # type: ignore[union-attr]
    expert = "model.layers.3.block_sparse_moe.experts.{expert}.w1.weight"
    assert name("blk.3.ffn_gate_exps.weight", "llama") == expert
    assert name("blk.3.ffn_gate_shexp.weight", "llama") is None
    assert name("mm.0.weight", "llama") is None
