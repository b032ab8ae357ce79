"""GGML blocks decode to the same float32 bits as the `gguf` package gives."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, quants

from allmetal.quant import ggml
from allmetal.quant.gguf import CHUNK, dequantize

HALVES = {
    "Q4_0": (0,), "Q4_1": (0, 2), "Q5_0": (0,), "Q5_1": (0, 2), "Q8_0": (0,), "Q2_K": (80, 82),
    "Q3_K": (108,), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,),
}  # fmt: skip
"""Where a block's float16 scales are: random bytes there could be NaN, which equals nothing."""


def random_rows(kind: str, rows: int, blocks: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    size = ggml.BLOCKS[kind].nbytes
    raw = rng.integers(0, 256, (rows, blocks, size), np.uint8)
    for at in HALVES[kind]:
        scale = rng.standard_normal((rows, blocks, 1)).astype(np.float16)
        raw[:, :, at : at + 2] = scale.view(np.uint8)
    return raw.reshape(rows, blocks * size)


@pytest.mark.parametrize("kind", ggml.BLOCKS)
def test_random_blocks_decode_to_the_bit(kind: str) -> None:
    raw = random_rows(kind, 33, 7)

    expected = quants.dequantize(raw, GGMLQuantizationType[kind])
    actual = dequantize(torch.from_numpy(raw), kind, torch.float32)

    assert expected.shape == tuple(actual.shape)
    assert np.array_equal(expected.view(np.uint32), actual.numpy().view(np.uint32))


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"])
def test_real_weights_come_back_close(kind: str) -> None:
    weights = np.random.default_rng(1).standard_normal((8, 256)).astype(np.float32)

    raw = quants.quantize(weights, GGMLQuantizationType[kind])
    actual = dequantize(torch.from_numpy(raw), kind, torch.float32).numpy()

    steps = {"Q4": 16, "Q5": 32, "Q8": 256}[kind[:2]]
    assert np.abs(actual - weights).max() < 1.5 * 2 * np.abs(weights).max() / steps


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_narrower_dtype_is_the_float32_value_rounded_once(dtype: torch.dtype) -> None:
    raw = torch.from_numpy(random_rows("Q4_K", 5, 3))

    exact = dequantize(raw, "Q4_K", torch.float32)

    assert torch.equal(exact.to(dtype), dequantize(raw, "Q4_K", dtype))


def test_more_than_a_chunk_is_decoded_whole() -> None:
    blocks = CHUNK // 32 + 3  # not a multiple of what is decoded at once
    raw = random_rows("Q8_0", 1, blocks)

    expected = quants.dequantize(raw, GGMLQuantizationType.Q8_0)
    for dtype in (torch.float32, torch.float16):
        actual = dequantize(torch.from_numpy(raw), "Q8_0", dtype)
        assert np.array_equal(expected.astype(dtype_of(dtype)), actual.numpy())


def dtype_of(dtype: torch.dtype) -> type:
    return {torch.float32: np.float32, torch.float16: np.float16}[dtype]


def test_no_rows_decode_to_no_rows() -> None:
    empty = torch.empty(0, 144, dtype=torch.uint8)

    assert (0, 256) == tuple(dequantize(empty, "Q4_K", torch.float32).shape)


def test_the_table_of_blocks_is_ggmls() -> None:
    from gguf.constants import GGML_QUANT_SIZES

    expected = {kind: GGML_QUANT_SIZES[GGMLQuantizationType[kind]] for kind in ggml.BLOCKS}
    assert expected == {kind: (b.elements, b.nbytes) for kind, b in ggml.BLOCKS.items()}

    numbers = {kind.value: kind.name for kind in GGMLQuantizationType}
    assert {n: numbers[n] for n in ggml.NAMES if n in numbers} == {
        n: name for n, name in ggml.NAMES.items() if n in numbers
    }
