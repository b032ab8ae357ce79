"""Logits to tokens: the lowest kept logit is found among the largest few, so that the vocabulary
is sorted only for a row whose filters keep more.

Agrees with the reference: min-p, then top-k, then top-p, ties of the last kept; the draw is the
inverse of the cumulative distribution in vocabulary order.

Legend: B rows, V vocabulary, N candidates.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from allmetal.platform.contract import Support, Supported
from allmetal.platform.specs import SamplingOp, SamplingSpec

_CANDIDATES = 512


class TorchSampling:
    name = "torch"

    def supports(self, spec: SamplingSpec) -> Support:
        return Supported(rank=20)

    def build(self, spec: SamplingSpec) -> SamplingOp:
        return _sample


@dataclass(slots=True)
class _Filters:
    """Each [B] or None; see SamplingOp."""

    top_k: torch.Tensor | None
    top_p: torch.Tensor | None
    min_p: torch.Tensor | None

    def rows(self, index: torch.Tensor) -> _Filters:
        return _Filters(
            *(None if x is None else x[index] for x in (self.top_k, self.top_p, self.min_p))
        )


def _sample(
    logits: torch.Tensor,
    temperature: torch.Tensor | None,
    top_k: torch.Tensor | None,
    top_p: torch.Tensor | None,
    min_p: torch.Tensor | None,
    uniform: torch.Tensor | None,
) -> torch.Tensor:
    greedy = logits.argmax(-1)
    if temperature is None or not len(logits):
        return greedy
    assert uniform is not None
    top = logits.gather(1, greedy[:, None])
    logs = (logits - top).div_(torch.where(temperature > 0, temperature, 1.0)[:, None])
    filters = _Filters(top_k, top_p, min_p)
    if top_k is not None or top_p is not None or min_p is not None:
        lowest = _lowest_kept(logs, filters)
        logs.masked_fill_(logs < lowest[:, None], float("-inf"))
    cumulative = logs.exp_().cumsum_(-1)
    total = cumulative[:, -1]
    below = torch.nextafter(total, torch.zeros_like(total))  # u * total may round up to total
    target = torch.minimum(uniform * total, below)
    drawn = torch.searchsorted(cumulative, target[:, None], right=True)[:, 0]
    return torch.where(temperature > 0, drawn, greedy)


def _lowest_kept(logs: torch.Tensor, filters: _Filters) -> torch.Tensor:
    """The least logit every filter keeps, [B]; `logs` [B, V] are at most 0."""
    size = min(_CANDIDATES, logs.shape[1])
    lowest, known = _among(logs, filters, size)
    if not bool(known.all()):
        rest = (~known).nonzero()[:, 0]
        lowest[rest], _ = _among(logs[rest], filters.rows(rest), logs.shape[1])
    return lowest


def _among(logs: torch.Tensor, filters: _Filters, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(lowest kept logit, whether it is certain), judged by the `size` largest of each row."""
    falling = logs.topk(size, sorted=True).values  # [B, N]
    whole = size == logs.shape[1]
    lowest = torch.full_like(falling[:, 0], float("-inf"))
    known = torch.ones_like(lowest, dtype=torch.bool)
    if filters.min_p is not None:
        lowest = torch.maximum(lowest, filters.min_p.log())
    if filters.top_k is not None:
        on = filters.top_k > 0
        place = (filters.top_k.long().clamp(max=size) - 1).clamp(min=0)
        kth = falling.gather(1, place[:, None])[:, 0]
        lowest = torch.where(on, torch.maximum(lowest, kth), lowest)
        known = whole | ~on | (filters.top_k <= size)
    if filters.top_p is None:
        return lowest, known
    masses = torch.where(falling >= lowest[:, None], falling.exp(), 0.0)
    total = masses.sum(-1)
    beyond = (falling[:, -1] >= lowest).nonzero()[:, 0]
    if not whole and len(beyond):
        kept = logs[beyond]
        total[beyond] = torch.where(kept >= lowest[beyond, None], kept.exp(), 0.0).sum(-1)
    before = masses.cumsum(-1) - masses
    needed = (before < (filters.top_p * total)[:, None]) & (masses > 0)
    least = torch.where(needed, falling, float("inf")).amin(-1)
    on = filters.top_p < 1
    # Where the last candidate is needed, so may be others.
    known = known & (whole | ~on | ~needed[:, -1])
    return torch.where(on, torch.maximum(lowest, least), lowest), known
