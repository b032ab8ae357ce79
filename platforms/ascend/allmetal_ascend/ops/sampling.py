"""Choice of tokens for all rows at once, in torch's operators.

The fused ones (`npu_top_k_top_p`) drop what is as likely as the last token kept, and take no k
above 1024 and no min-p: their answers would differ from those of other hardware.

Legend: B rows, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from allmetal.platform.contract import Support, Supported
from allmetal.platform.specs import SamplingOp, SamplingSpec


@dataclass(frozen=True, slots=True)
class NpuSampling:
    name: str = "npu_sampling"

    def supports(self, spec: SamplingSpec) -> Support:
        return Supported()

    def build(self, spec: SamplingSpec) -> SamplingOp:
        return _sample


def _sample(
    logits: torch.Tensor,
    temperature: torch.Tensor | None,
    top_k: torch.Tensor | None,
    top_p: torch.Tensor | None,
    min_p: torch.Tensor | None,
    uniform: torch.Tensor | None,
) -> torch.Tensor:
    greedy = logits.argmax(-1)
    if temperature is None or not logits.shape[0]:
        return greedy
    assert uniform is not None
    heat = torch.where(temperature > 0, temperature, 1.0)[:, None]
    logs = (logits - logits.amax(-1, keepdim=True)) / heat
    if min_p is not None:
        logs = logs.masked_fill(logs < min_p.log()[:, None], float("-inf"))
    if top_k is not None:
        logs = _keep_top_k(logs, top_k)
    masses = logs.exp()
    if top_p is not None:
        masses = _keep_top_p(masses, top_p)
    return torch.where(temperature > 0, _draw(masses, uniform), greedy)


def _keep_top_k(logs: torch.Tensor, top_k: torch.Tensor) -> torch.Tensor:
    """Tokens no less likely than the k-th; 0 is off."""
    size = logs.shape[1]
    last = torch.where(top_k > 0, top_k.clamp(max=size), size).long() - 1
    lowest = logs.sort(-1, descending=True).values.gather(1, last[:, None])
    return logs.masked_fill(logs < lowest, float("-inf"))


def _keep_top_p(masses: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    """The fewest most likely tokens that hold `top_p` of the mass, with ties of the last."""
    falling = masses.sort(-1, descending=True).values
    before = falling.cumsum(-1) - falling
    needed = before < top_p[:, None] * falling.sum(-1, keepdim=True)
    lowest = torch.where(needed, falling, float("inf")).amin(-1, keepdim=True)
    return torch.where((masses >= lowest) | (top_p[:, None] >= 1), masses, 0.0)


def _draw(masses: torch.Tensor, uniform: torch.Tensor) -> torch.Tensor:
    """The first token of each row whose cumulative share exceeds `uniform` in [0, 1)."""
    cumulative = masses.cumsum(-1)
    total = cumulative[:, -1]
    below = torch.nextafter(total, torch.zeros_like(total))  # u * total may round up to total
    bound = torch.minimum(uniform * total, below)[:, None]
    return (cumulative > bound).to(torch.int32).argmax(-1)
