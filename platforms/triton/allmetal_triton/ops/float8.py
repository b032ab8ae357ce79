"""Activations to 8 bits, floating point or integers.  Bytes moved: 3 T C."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import triton

from allmetal_triton.jit.float8 import round_groups as _round_groups
from allmetal_triton.jit.float8 import round_tokens as _round_tokens

_GROUPS = 16
"""A program rounds so many groups of a token."""
_HALVED = {torch.float8_e4m3fnuz: 448.0 / 2, torch.float8_e5m2fnuz: 57344.0 / 2}


def round_tokens(
    x: torch.Tensor, dtype: torch.dtype, options: Mapping[str, bool], *, halved: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """x [T, C], channels side by side -> (y [T, C] in `dtype`, scale [T, 1] float32).

    `halved`: codes of `dtype` mean half of those that the values are to be rounded to (see
    `target.halved`): the same ones are given, and twice the scale.
    """
    num_tokens, channels = x.shape
    y = torch.empty((num_tokens, channels), dtype=dtype, device=x.device)
    scale = torch.empty((num_tokens, 1), dtype=torch.float32, device=x.device)
    block = triton.next_power_of_2(channels)
    if num_tokens:
        _round_tokens[(num_tokens,)](
            x,
            y,
            scale,
            x.stride(0),
            MOST=_HALVED[dtype] if halved else _largest(dtype),
            C=channels,
            BLOCK=block,
            num_warps=max(1, min(16, block // 256)),
            **options,
        )
    return y, scale


def round_groups(
    x: torch.Tensor, dtype: torch.dtype, size: int, num_rows: int, options: Mapping[str, bool]
) -> tuple[torch.Tensor, torch.Tensor]:
    """x [T, C], channels side by side -> (y [R, C] in `dtype`, scale [R, C / size] float32, tokens
    side by side), each `size` (a power of 2) channels with a scale.

    `num_rows`: R, T or more; what is in the rows behind T is left as it was.
    """
    num_tokens, channels = x.shape
    groups = triton.cdiv(channels, size)
    y = torch.empty((num_rows, channels), dtype=dtype, device=x.device)
    scale = torch.empty((groups, num_rows), dtype=torch.float32, device=x.device)
    if num_tokens:
        _round_groups[(num_tokens, triton.cdiv(groups, _GROUPS))](
            x,
            y,
            scale,
            x.stride(0),
            num_rows,
            MOST=torch.finfo(dtype).max,
            C=channels,
            SIZE=size,
            GROUPS=_GROUPS,
            num_warps=4,
            **options,
        )
    return y, scale.t()


def _largest(dtype: torch.dtype) -> float:
    """127 of int8, which has one more below zero than above it."""
    return torch.finfo(dtype).max if dtype.is_floating_point else float(torch.iinfo(dtype).max)
