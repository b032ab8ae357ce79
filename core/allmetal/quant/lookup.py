"""Rows of a table that is kept in GGML blocks, as one operator of torch: what records a step's
operators sees the look-up and not the twenty that it is made of.
"""

from __future__ import annotations

from typing import cast

import torch

from allmetal.quant.gguf import dequantize

_LIBRARY = torch.library.Library("allmetal", "DEF")
_LIBRARY.define(
    "look_up_blocks(Tensor table, Tensor rows, str ggml_type, ScalarType dtype) -> Tensor"
)


def look_up(
    table: torch.Tensor, rows: torch.Tensor, ggml_type: str, dtype: torch.dtype
) -> torch.Tensor:
    """table [N, bytes] uint8, rows [T] int64 -> [T, C] of `dtype`."""
    return cast("torch.Tensor", torch.ops.allmetal.look_up_blocks(table, rows, ggml_type, dtype))


def _look_up(
    table: torch.Tensor, rows: torch.Tensor, ggml_type: str, dtype: torch.dtype
) -> torch.Tensor:
    return dequantize(table[rows], ggml_type, dtype)


# Whoever compiles steps finds the operators it is made of.
_LIBRARY.impl("look_up_blocks", _look_up, "CompositeImplicitAutograd")
