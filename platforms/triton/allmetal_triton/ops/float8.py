"""Activations to 8 bit floating point.  Bytes moved: 3 T C."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import triton

from allmetal_triton.jit.float8 import round_tokens as _round_tokens

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
            MOST=_HALVED[dtype] if halved else torch.finfo(dtype).max,
            C=channels,
            BLOCK=block,
            num_warps=max(1, min(16, block // 256)),
            **options,
        )
    return y, scale
