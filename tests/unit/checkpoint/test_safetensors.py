"""Safetensors folders: what is read, and what is said when files do not hold what they promise."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from allmetal.checkpoint import open_checkpoint
from allmetal.checkpoint.safetensors import SafetensorsFile
from allmetal.config import EngineConfig
from allmetal.errors import CheckpointError

TENSORS = {
    "a.weight": np.arange(12, dtype=np.float32).reshape(3, 4),
    "b.weight": np.arange(5, dtype=np.int64),
    "c": np.array(3.0, dtype=np.float16),
    "empty": np.empty((0, 4), np.float32),
}


def write_raw(path: Path, header: Mapping[str, Any] | bytes, data: bytes = b"") -> Path:
    encoded = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(encoded).to_bytes(8, "little") + encoded + data)
    return path


def write_config(folder: Path, **values: Any) -> None:
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", **values}))


def opened(folder: Path) -> Any:
    return open_checkpoint(EngineConfig(model=str(folder)))


def error(action: Callable[[], object]) -> CheckpointError:
    with pytest.raises(CheckpointError) as raised:
        action()
    return raised.value


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_config(tmp_path)
    save_file(TENSORS, tmp_path / "model.safetensors", {"format": "pt"})
    return tmp_path


def test_a_single_file_is_read_as_the_library_wrote_it(folder: Path) -> None:
    (folder / "generation_config.json").write_text('{"eos_token_id": [1, 2]}')

    checkpoint = opened(folder)

    assert checkpoint.format == "safetensors"
    assert checkpoint.config["model_type"] == "llama"
    assert checkpoint.generation_config == {"eos_token_id": [1, 2]}
    assert {name: a.shape for name, a in TENSORS.items()} == {
        name: info.shape for name, info in checkpoint.tensors.items()
    }
    for name, array in TENSORS.items():
        assert array.tobytes() == bytes(checkpoint.data(name))
        assert array.dtype.name == checkpoint.tensors[name].dtype
    checkpoint.close()


def test_shards_are_found_by_their_index(tmp_path: Path) -> None:
    write_config(tmp_path)
    names = sorted(TENSORS)
    files = {name: f"model-{1 + i % 2:05d}-of-00002.safetensors" for i, name in enumerate(names)}
    for file in set(files.values()):
        save_file({n: TENSORS[n] for n in names if files[n] == file}, tmp_path / file)
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": files}))

    checkpoint = opened(tmp_path)
    assert set(TENSORS) == set(checkpoint.tensors)
    assert TENSORS["a.weight"].tobytes() == bytes(checkpoint.data("a.weight"))

    (tmp_path / files[names[1]]).unlink()
    e = error(lambda: opened(tmp_path))
    assert "lacks 1 of 2 shards: model-00002-of-00002.safetensors" in e.message
    assert e.hint is not None


def test_a_shard_without_a_tensor_that_the_index_places_there_is_named(tmp_path: Path) -> None:
    write_config(tmp_path)
    save_file({"a": TENSORS["a.weight"]}, tmp_path / "x.safetensors")
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "x.safetensors", "b": "x.safetensors"}}))

    assert "lacks 1 tensors" in error(lambda: opened(tmp_path)).message


@pytest.mark.parametrize("cut", [1, 30, 70, 400])
def test_a_truncated_file_is_noticed_before_anything_is_read(folder: Path, cut: int) -> None:
    path = folder / "model.safetensors"
    whole = path.read_bytes()
    path.write_bytes(whole[:-cut] if cut < len(whole) else whole[:5])

    e = error(lambda: opened(folder))

    assert "truncated" in e.message
    assert "fetch it again" in (e.hint or "")


def test_an_empty_file_is_noticed(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"")

    assert "is empty" in error(lambda: opened(folder)).message


HEADERS: Mapping[str, tuple[Mapping[str, Any] | bytes, str]] = {
    "size": (
        {"x": {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 15]}},
        "needs 16 bytes, the header gives it 15",
    ),
    "dtype": (
        {"x": {"dtype": "F7", "shape": [1], "data_offsets": [0, 1]}},
        "unknown dtype 'F7'",
    ),
    "overlap": (
        {
            "x": {"dtype": "U8", "shape": [8], "data_offsets": [0, 8]},
            "y": {"dtype": "U8", "shape": [8], "data_offsets": [4, 12]},
        },
        "lie over each other",
    ),
    "negative": (
        {"x": {"dtype": "U8", "shape": [-1], "data_offsets": [0, -1]}},
        "malformed",
    ),
    "entry": ({"x": [1, 2]}, "malformed"),
    "offsets": ({"x": {"dtype": "U8", "shape": [1], "data_offsets": [0]}}, "malformed"),
    "list": (b"[1]", "no object"),
    "json": (b"{'a': 1", "not JSON"),
}


@pytest.mark.parametrize("case", HEADERS)
def test_a_header_that_lies_is_told_from_the_file(case: str, tmp_path: Path) -> None:
    header, expected = HEADERS[case]
    path = write_raw(tmp_path / "x.safetensors", header, bytes(16))

    assert expected in error(lambda: SafetensorsFile(path)).message


def test_a_header_of_absurd_length_is_not_believed(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes((1 << 60).to_bytes(8, "little") + bytes(64))

    assert "not a safetensors file" in error(lambda: SafetensorsFile(path)).message


def test_a_folder_without_a_config_says_what_it_holds(tmp_path: Path) -> None:
    save_file(TENSORS, tmp_path / "model.safetensors")

    e = error(lambda: opened(tmp_path))
    assert "has no config.json (it holds model.safetensors)" in e.message


def test_a_config_that_is_no_models_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert "names no model_type" in error(lambda: opened(tmp_path)).message

    (tmp_path / "config.json").write_text('{"model_type"')
    assert "is not JSON" in error(lambda: opened(tmp_path)).message


def test_a_folder_without_weights_says_which_it_has(tmp_path: Path) -> None:
    write_config(tmp_path)
    e = error(lambda: opened(tmp_path))
    assert "no *.safetensors files" in e.message
    assert "--load-format dummy" in (e.hint or "")

    (tmp_path / "pytorch_model.bin").write_bytes(b"x")
    assert "it has pytorch_model.bin" in error(lambda: opened(tmp_path)).message


def test_dummy_weights_need_the_config_only(tmp_path: Path) -> None:
    write_config(tmp_path, vocab_size=7)

    checkpoint = open_checkpoint(EngineConfig(model=str(tmp_path), load_format="dummy"))

    assert checkpoint.format == "dummy"
    assert checkpoint.config["vocab_size"] == 7
    assert not checkpoint.tensors


def test_a_path_that_is_nowhere_says_so(tmp_path: Path) -> None:
    e = error(lambda: opened(tmp_path / "none"))
    assert "there is no folder or file" in e.message
    assert "owner/name" in (e.hint or "")


def test_a_file_beside_the_model_points_to_the_folder(folder: Path) -> None:
    e = error(lambda: opened(folder / "config.json"))
    assert str(folder) in (e.hint or "")


def test_a_load_format_that_the_model_is_not_in_is_refused(folder: Path) -> None:
    config = EngineConfig(model=str(folder), load_format="gguf")
    assert "no .gguf file" in error(lambda: open_checkpoint(config)).message


def test_opening_imports_no_torch(folder: Path) -> None:
    import subprocess
    import sys

    code = (
        "import sys; from allmetal.checkpoint import open_checkpoint;"
        "from allmetal.config import EngineConfig;"
        f"open_checkpoint(EngineConfig(model={str(folder)!r}));"
        "print('torch' in sys.modules, 'huggingface_hub' in sys.modules)"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.split() == ["False", "False"]
