"""Logits to tokens, all rows at once.

As the reference, but that running sums are taken by doubling.

Legend: B rows, V vocabulary.
"""

from __future__ import annotations

import torch

from allmetal.platform.reference import sampling_rows
from allmetal.platform.specs import SamplingOp, SamplingSpec
from allmetal_tpu.ops.kernel import XlaKernel, running_sum

_BELOW_ONE = 1.0 - 2.0**-23


def _keep_top_p(masses: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    """The fewest most likely tokens that hold `top_p` of the mass, with ties of the last."""
    falling = masses.sort(dim=-1, descending=True).values
    sums = running_sum(falling)
    needed = sums - falling < top_p * sums[:, -1:]
    lowest = torch.where(needed, falling, float("inf")).amin(-1, keepdim=True)
    return torch.where((masses >= lowest) | (top_p >= 1), masses, 0.0)


def _draw(masses: torch.Tensor, uniform: torch.Tensor) -> torch.Tensor:
    """The first token whose cumulative share exceeds `uniform` [B, 1] in [0, 1)."""
    sums, there = running_sum(masses), masses > 0
    # u * total may round up to total, and a sum by doubling may differ by a rounding from one that
    # counts the same masses: so the goal stays below the largest sum at a token that can be drawn.
    largest = torch.where(there, sums, 0.0).amax(-1, keepdim=True)
    goal = torch.minimum(uniform * largest, largest * _BELOW_ONE)
    ids = torch.arange(masses.shape[1], device=masses.device)
    return torch.where((sums > goal) & there, ids, masses.shape[1] - 1).amin(-1)


def _make(spec: SamplingSpec) -> SamplingOp:
    return sampling_rows.make(spec, _keep_top_p, _draw)


KERNEL: XlaKernel[SamplingSpec, SamplingOp] = XlaKernel("xla_sampling", lambda spec: None, _make)
