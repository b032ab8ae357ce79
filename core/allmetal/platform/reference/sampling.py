"""Logits to tokens, by the inverse of the cumulative distribution in vocabulary order.

Source: top-p arXiv:1904.09751; min-p arXiv:2407.01082.

Legend: B rows, V vocabulary.
"""

from __future__ import annotations

import torch

from allmetal.platform.reference.kernel import ReferenceKernel
from allmetal.platform.specs import SamplingOp, SamplingSpec


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
        # Row by row, so that no sum's order depends on how many rows there are.
        drawn = []
        for row, (t, u) in enumerate(zip(temperature, uniform, strict=True)):
            k, p, least = (None if x is None else x[row] for x in (top_k, top_p, min_p))
            drawn.append(_draw(_masses(logits[row], t, k, p, least), u))
        return torch.where(temperature > 0, torch.stack(drawn), greedy)

    return sampling


def _masses(
    logits: torch.Tensor,
    temperature: torch.Tensor,
    top_k: torch.Tensor | None,
    top_p: torch.Tensor | None,
    min_p: torch.Tensor | None,
) -> torch.Tensor:
    """One row [V] -> probabilities up to a common factor, 0 where a filter removes a token."""
    logs = (logits - logits.max()) / torch.where(temperature > 0, temperature, 1.0)
    if min_p is not None:
        logs = logs.masked_fill(logs < min_p.log(), float("-inf"))
    if top_k is not None:
        logs = _keep_top_k(logs, top_k)
    masses = logs.exp()
    return masses if top_p is None else _keep_top_p(masses, top_p)


def _keep_top_k(logs: torch.Tensor, top_k: torch.Tensor) -> torch.Tensor:
    """Tokens no less likely than the k-th; 0 is off."""
    last = torch.where(top_k > 0, top_k.clamp(max=logs.shape[0]), logs.shape[0]).long() - 1
    lowest = logs.sort(descending=True).values.gather(0, last.view(1))
    return logs.masked_fill(logs < lowest, float("-inf"))


def _keep_top_p(masses: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    """The fewest most likely tokens that hold `top_p` of the mass, with ties of the last."""
    falling = masses.sort(descending=True).values
    before = falling.cumsum(0) - falling
    needed = before < top_p * falling.sum()
    lowest = torch.where(needed, falling, float("inf")).min()
    return torch.where((masses >= lowest) | (top_p >= 1), masses, 0.0)


def _draw(masses: torch.Tensor, uniform: torch.Tensor) -> torch.Tensor:
    """The first token whose cumulative share exceeds `uniform` in [0, 1)."""
    cumulative = masses.cumsum(0)
    total = cumulative[-1]
    below = torch.nextafter(total, torch.zeros_like(total))  # u * total may round up to total
    return (cumulative > torch.minimum(uniform * total, below)).byte().argmax()


KERNEL: ReferenceKernel[SamplingSpec, SamplingOp] = ReferenceKernel(lambda spec: None, _make)
