"""Whole tensors and slices, from safetensors, from GGML blocks, and made up."""

from __future__ import annotations

import json
from pathlib import Path

import gguf
import gguf_files
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, quants
from safetensors.torch import save_file

from allmetal.checkpoint.contract import TensorInfo
from allmetal.checkpoint.folder import FolderCheckpoint
from allmetal.checkpoint.gguf.reader import GGUFFile
from allmetal.platform.specs import DenseWeight, GGUFWeight
from allmetal.runner.weights import StoredReader, dummy_readers, weight_readers

DTYPES = [
    torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int8, torch.uint8,
    torch.int64, torch.bool, torch.float8_e4m3fn, torch.float8_e5m2,
]  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    return tmp_path


def reader_of(tensor: torch.Tensor, folder: Path) -> StoredReader:
    save_file({"x": tensor}, folder / "model.safetensors")
    checkpoint = FolderCheckpoint(folder)
    return StoredReader("x", checkpoint.tensors["x"], checkpoint.data("x"))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dense_dtype_is_read_as_it_is(dtype: torch.dtype, folder: Path) -> None:
    tensor = (torch.randn(6, 5) * 10).to(dtype)

    reader = reader_of(tensor, folder)

    assert reader.format == DenseWeight(dtype=str(dtype).removeprefix("torch."))
    assert dtype == reader.read().dtype
    assert torch.equal(tensor.view(torch.uint8), reader.read().view(torch.uint8))
    part = reader.read(1, 2, 3)
    assert torch.equal(tensor[:, 2:5].contiguous().view(torch.uint8), part.view(torch.uint8))


@pytest.mark.parametrize(
    ("dim", "start", "length"), [(0, 1, 2), (1, 0, 5), (2, 3, 1), (-1, 1, 2), (0, 4, 0)]
)
def test_a_slice_is_the_slice_of_the_whole(dim: int, start: int, length: int, folder: Path) -> None:
    tensor = torch.randn(4, 6, 5)

    reader = reader_of(tensor, folder)

    assert torch.equal(tensor.narrow(dim, start, length), reader.read(dim, start, length))
    assert torch.equal(
        tensor.narrow(dim, start, 1 if length else 0), reader.read(dim, start, 1 if length else 0)
    )


def test_without_a_length_a_slice_runs_to_the_end(folder: Path) -> None:
    tensor = torch.randn(4, 6)
    assert torch.equal(tensor[:, 2:], reader_of(tensor, folder).read(1, 2))


def test_a_slice_beyond_the_tensor_is_refused(folder: Path) -> None:
    with pytest.raises(ValueError, match="no slice 3 to 5 of 4"):
        reader_of(torch.randn(4, 6), folder).read(0, 3, 2)


def test_a_scalar_and_an_empty_tensor_are_read(folder: Path) -> None:
    assert reader_of(torch.tensor(3.5), folder).read().item() == 3.5
    assert tuple(reader_of(torch.empty(0, 4), folder).read().shape) == (0, 4)


def test_what_is_read_lies_in_the_files_pages_and_writing_to_it_does_not_change_the_file(
    folder: Path,
) -> None:
    reader = reader_of(torch.ones(2, 3), folder)
    before = (folder / "model.safetensors").read_bytes()

    first = reader.read()
    first.mul_(5)

    assert first.data_ptr() == reader.read().data_ptr()
    assert (folder / "model.safetensors").read_bytes() == before


def test_readers_come_in_the_order_of_the_file(folder: Path) -> None:
    tensors = {name: torch.randn(3, 2) for name in ("b", "a", "c")}
    save_file(tensors, folder / "model.safetensors")

    found = dict(weight_readers(FolderCheckpoint(folder), progress=False))

    header = (folder / "model.safetensors").read_bytes()
    assert sorted(tensors, key=lambda name: header.index(f'"{name}"'.encode())) == list(found)
    assert all(torch.equal(tensors[name], reader.read()) for name, reader in found.items())


def test_progress_is_shown_in_bytes(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_file({"a": torch.zeros(1024, 1024)}, folder / "model.safetensors")

    list(weight_readers(FolderCheckpoint(folder), progress=True))

    assert "loading weights: 100%" in capsys.readouterr().err


# ---- blocks --------------------------------------------------------------------------------


def blocks(path: Path, values: np.ndarray, kind: str, **info: int) -> StoredReader:
    writer = gguf.GGUFWriter(str(path / "m.gguf"), "llama")
    data = quants.quantize(values, GGMLQuantizationType[kind])
    writer.add_tensor("x", data, raw_dtype=GGMLQuantizationType[kind])
    gguf_files.finish(writer)
    file = GGUFFile(path / "m.gguf")
    stored = file.tensors["x"]
    described = TensorInfo(shape=stored.shape, dtype=stored.type, nbytes=stored.nbytes, **info)
    return StoredReader("x", described, file.data("x"))


@pytest.fixture
def values() -> np.ndarray:
    return np.random.default_rng(0).standard_normal((12, 128)).astype(np.float32)


def expected_of(values: np.ndarray, kind: str) -> torch.Tensor:
    number = GGMLQuantizationType[kind]
    return torch.from_numpy(quants.dequantize(quants.quantize(values, number), number))


def test_blocks_are_read_as_stored_and_as_values(values: np.ndarray, tmp_path: Path) -> None:
    reader = blocks(tmp_path, values, "Q4_0")
    raw = quants.quantize(values, GGMLQuantizationType.Q4_0)

    assert reader.format == GGUFWeight(type="Q4_0")
    assert reader.shape == (12, 128)
    assert np.array_equal(raw, reader.read().numpy())
    assert np.array_equal(raw[3:8], reader.read(0, 3, 5).numpy())
    assert np.array_equal(raw[:, 18:54], reader.read(1, 32, 64).numpy())
    whole = expected_of(values, "Q4_0")
    assert torch.equal(whole, reader.dequantize(torch.float32))
    assert torch.equal(whole[3:8], reader.dequantize(torch.float32, 0, 3, 5))
    assert torch.equal(whole[:, 32:96], reader.dequantize(torch.float32, 1, 32, 64))
    assert torch.equal(whole.bfloat16(), reader.dequantize(torch.bfloat16))


def test_columns_that_cut_through_a_block_are_refused(values: np.ndarray, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="columns 16 to 48 cut through blocks of 32 values"):
        blocks(tmp_path, values, "Q8_0").read(1, 16, 32)


def test_rows_in_rotary_pairs_come_back_in_halves(values: np.ndarray, tmp_path: Path) -> None:
    stored = gguf_files.permuted(values, 3)
    whole = expected_of(values, "Q8_0")

    reader = blocks(tmp_path, stored, "Q8_0", paired_heads=3)

    assert torch.equal(whole, reader.dequantize(torch.float32))
    assert torch.equal(whole[5:10], reader.dequantize(torch.float32, 0, 5, 5))
    assert torch.equal(whole[:, 64:], reader.dequantize(torch.float32, 1, 64))
    (tmp_path / "plain").mkdir()
    again = blocks(tmp_path / "plain", values, "Q8_0")
    assert torch.equal(again.read(0, 4, 4), reader.read(0, 4, 4))


def test_dense_rows_and_biases_in_pairs_too_and_shifts_are_undone(values: np.ndarray) -> None:
    stored = gguf_files.permuted(values, 2)
    info = TensorInfo(shape=(12, 128), dtype="float32", nbytes=stored.nbytes, paired_heads=2)
    reader = StoredReader("x", info, memoryview(np.ascontiguousarray(stored)).cast("B"))
    assert np.array_equal(values, reader.read().numpy())
    assert np.array_equal(values[4:9], reader.read(0, 4, 5).numpy())

    norm = np.linspace(0.5, 2, 7, dtype=np.float32)
    info = TensorInfo(shape=(7,), dtype="float32", nbytes=28, shift=-1.0)
    reader = StoredReader("norm", info, memoryview(norm).cast("B"))
    assert np.array_equal(norm - 1, reader.read().numpy())
    assert np.array_equal((norm - 1)[2:5], reader.dequantize(torch.float32, 0, 2, 3).numpy())


# ---- made up -------------------------------------------------------------------------------

SHAPES = {"a.weight": (64, 32), "b.weight": (64, 32), "norm.weight": (32,), "big": (3000, 400)}


def made(seed: int = 0, dtype: str = "float32") -> dict[str, torch.Tensor]:
    return {name: r.read() for name, r in dummy_readers(SHAPES, dtype=dtype, seed=seed)}


def test_dummy_weights_are_the_same_every_time_and_differ_by_name_and_seed() -> None:
    first, again, other = made(), made(), made(seed=1)

    assert {name: tuple(t.shape) for name, t in first.items()} == SHAPES
    assert all(torch.equal(first[name], again[name]) for name in SHAPES)
    assert not torch.equal(first["a.weight"], other["a.weight"])
    assert not torch.equal(first["a.weight"], first["b.weight"])


def test_dummy_weights_are_small_and_norms_are_near_one() -> None:
    weights = made()

    assert 0.018 < weights["big"].std().item() < 0.022
    assert abs(weights["big"].mean().item()) < 0.001
    assert 0.9 < weights["norm.weight"].mean().item() < 1.1


def test_no_two_rows_of_dummy_weights_are_alike() -> None:
    big = made()["big"]  # more values than are drawn at random

    assert len(torch.unique(big, dim=0)) == len(big)


def test_a_slice_of_dummy_weights_is_the_slice_of_the_whole() -> None:
    readers = dict(dummy_readers(SHAPES, dtype="bfloat16"))

    whole = readers["big"].read()
    assert whole.dtype == torch.bfloat16
    assert torch.equal(whole[2990:], readers["big"].read(0, 2990, 10))
    assert torch.equal(whole[:, 5:9].float(), readers["big"].dequantize(torch.float32, 1, 5, 4))
