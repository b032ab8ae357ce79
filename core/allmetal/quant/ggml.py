"""The block formats of GGML tensors: how many values a block holds, in how many bytes.

Source: the type traits in ggml.c and the block structs in ggml-common.h.  No torch here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Block:
    """`elements` values are stored in `nbytes` bytes."""

    elements: int
    nbytes: int


BLOCKS: Mapping[str, Block] = {
    "Q4_0": Block(32, 18),
    "Q4_1": Block(32, 20),
    "Q5_0": Block(32, 22),
    "Q5_1": Block(32, 24),
    "Q8_0": Block(32, 34),
    "Q2_K": Block(256, 84),
    "Q3_K": Block(256, 110),
    "Q4_K": Block(256, 144),
    "Q5_K": Block(256, 176),
    "Q6_K": Block(256, 210),
}
"""Block types that can be dequantised."""

DENSE: Mapping[str, tuple[str, int]] = {
    "F32": ("float32", 4),
    "F16": ("float16", 2),
    "BF16": ("bfloat16", 2),
    "F64": ("float64", 8),
    "I8": ("int8", 1),
    "I16": ("int16", 2),
    "I32": ("int32", 4),
    "I64": ("int64", 8),
}
"""GGML's name of a plain type -> torch's name and bytes a value."""

NAMES: Mapping[int, str] = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 6: "Q5_0", 7: "Q5_1", 8: "Q8_0", 9: "Q8_1",
    10: "Q2_K", 11: "Q3_K", 12: "Q4_K", 13: "Q5_K", 14: "Q6_K", 15: "Q8_K", 16: "IQ2_XXS",
    17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 20: "IQ4_NL", 21: "IQ3_S", 22: "IQ2_S",
    23: "IQ4_XS", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64", 29: "IQ1_M",
    30: "BF16", 34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4", 40: "NVFP4", 41: "Q1_0",
}  # fmt: skip
"""Number in the file -> name, also of types that cannot be read, for messages."""


def row_bytes(ggml_type: str, columns: int) -> int:
    """Bytes of a row of `columns` values, which must be whole blocks."""
    block = BLOCKS[ggml_type]
    assert columns % block.elements == 0, (ggml_type, columns)
    return columns // block.elements * block.nbytes


def row_columns(ggml_type: str, nbytes: int) -> int:
    """Values in a row of `nbytes` bytes, which must be whole blocks."""
    block = BLOCKS[ggml_type]
    assert nbytes % block.nbytes == 0, (ggml_type, nbytes)
    return nbytes // block.nbytes * block.elements
