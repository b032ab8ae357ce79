"""Logits to tokens, all rows at once.

As the reference, but that running sums are taken by doubling.

Legend: B rows, V vocabulary.
"""

from __future__ import annotations

import torch

from allmetal.platform.specs import SamplingOp, SamplingSpec
from allmetal_tpu.ops.kernel import XlaKernel, running_sum

_BELOW_ONE = 1.0 - 2.0**-23


def _make(spec: SamplingSpec) -> SamplingOp:
    def sampling(
        logits: torch.Tensor,
        temperature: torch.Tensor | None,
        top_k: torch.Tensor | None,
        top_p: torch.Tensor | None,
        min_p: torch.Tensor | None,
        uniform: torch.Tensor | None,
    ) -> torch.Tensor:
        assert logits.shape[1] == spec.vocab_size
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
            masses = _keep_top_p(masses, top_p[:, None])
        return torch.where(temperature > 0, _draw(masses, uniform[:, None]), greedy)

    return sampling


def _keep_top_k(logs: torch.Tensor, top_k: torch.Tensor) -> torch.Tensor:
    """Tokens no less likely than the k-th; 0 is off."""
    size = logs.shape[1]
    last = torch.where(top_k > 0, top_k.clamp(max=size), size).long() - 1
    lowest = logs.sort(dim=-1, descending=True).values.gather(1, last[:, None])
    return logs.masked_fill(logs < lowest, float("-inf"))


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


KERNEL: XlaKernel[SamplingSpec, SamplingOp] = XlaKernel("xla_sampling", lambda spec: None, _make)
