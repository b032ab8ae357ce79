"""Choice of tokens for all rows at once, in torch's operators.

The fused ones (`npu_top_k_top_p`) drop what is as likely as the last token kept, and take no k
above 1024 and no min-p: their answers would differ from those of other hardware.

Legend: B rows, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from allmetal.platform.contract import Support, Supported
from allmetal.platform.reference import sampling_rows
from allmetal.platform.specs import SamplingOp, SamplingSpec


@dataclass(frozen=True, slots=True)
class NpuSampling:
    name: str = "npu_sampling"

    def supports(self, spec: SamplingSpec) -> Support:
        return Supported()

    def build(self, spec: SamplingSpec) -> SamplingOp:
        return sampling_rows.make(spec, _keep_top_p, _draw)


def _keep_top_p(masses: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    """The fewest most likely tokens that hold `top_p` of the mass, with ties of the last."""
    falling = masses.sort(-1, descending=True).values
    before = falling.cumsum(-1) - falling
    needed = before < top_p * falling.sum(-1, keepdim=True)
    lowest = torch.where(needed, falling, float("inf")).amin(-1, keepdim=True)
    return torch.where((masses >= lowest) | (top_p >= 1), masses, 0.0)


def _draw(masses: torch.Tensor, uniform: torch.Tensor) -> torch.Tensor:
    """The first token of each row whose cumulative share exceeds `uniform` in [0, 1)."""
    cumulative = masses.cumsum(-1)
    total = cumulative[:, -1:]
    below = torch.nextafter(total, torch.zeros_like(total))  # u * total may round up to total
    bound = torch.minimum(uniform * total, below)
    return (cumulative > bound).to(torch.int32).argmax(-1)
