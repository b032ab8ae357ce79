"""Dense weights to 8 bit floating point with a scale a row.

Rounded to nearest; the largest magnitude of a row becomes the type's largest.
"""

from __future__ import annotations

import torch

ROWS = 1024
"""Quantised at once, which bounds the float32 copy."""


def quantize(
    weight: torch.Tensor, dtype: torch.dtype = torch.float8_e4m3fn
) -> dict[str, torch.Tensor]:
    """weight [N, C] to the tensors of specs.Float8Weight: `weight` [N, C] in `dtype` and `scale`
    [N, 1] float32.

    A row of zeros has scale 0, so that it comes back as zeros.
    """
    rows, columns = weight.shape
    most = torch.finfo(dtype).max
    quantized = torch.empty(rows, columns, dtype=dtype, device=weight.device)
    scale = torch.empty(rows, 1, dtype=torch.float32, device=weight.device)
    for start in range(0, rows, ROWS):
        part = slice(start, start + ROWS)
        values = weight[part].float()
        largest = values.abs().amax(dim=-1, keepdim=True)
        scale[part] = largest / most
        inverse = torch.where(largest > 0, most / largest, 0.0)
        quantized[part] = (values * inverse).clamp_(-most, most).to(dtype)
    return {"weight": quantized, "scale": scale}


def dequantize(weight: torch.Tensor, scale: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The values that `quantize` kept, [N, C]."""
    return (weight.float() * scale).to(dtype)
