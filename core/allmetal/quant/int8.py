"""Dense weights to 8 bit integers with a scale a row, or a group of a row.

Symmetric, rounded to nearest: the largest magnitude of a group becomes 127.
"""

from __future__ import annotations

import torch

ROWS = 1024
"""Quantised at once, which bounds the float32 copy."""


def quantize(weight: torch.Tensor, group_size: int = 0) -> dict[str, torch.Tensor]:
    """weight [N, C] to the tensors of specs.IntWeight: `weight` [N, C] int8 and `scale`
    [N, C / group_size] float32; a `group_size` of 0 is the whole row.

    A group of zeros has scale 0, so that it comes back as zeros.
    """
    rows, columns = weight.shape
    group = group_size or columns
    if columns % group:
        raise ValueError(f"rows of {columns} values do not divide into groups of {group}")
    quantized = torch.empty(rows, columns, dtype=torch.int8, device=weight.device)
    scale = torch.empty(rows, columns // group, dtype=torch.float32, device=weight.device)
    for start in range(0, rows, ROWS):
        part = slice(start, start + ROWS)
        values = weight[part].float().view(-1, columns // group, group)
        largest = values.abs().amax(dim=-1)
        scale[part] = largest / 127
        inverse = torch.where(largest > 0, 127 / largest, 0.0)
        scaled = (values * inverse.unsqueeze(-1)).round_().clamp_(-127, 127)
        quantized[part] = scaled.view(-1, columns).to(torch.int8)
    return {"weight": quantized, "scale": scale}


def dequantize(weight: torch.Tensor, scale: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The values that `quantize` kept, [N, C]."""
    rows, columns = weight.shape
    groups = scale.shape[1]
    values = weight.view(rows, groups, columns // groups).float() * scale.unsqueeze(-1)
    return values.view(rows, columns).to(dtype)
