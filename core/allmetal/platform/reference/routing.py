"""Router logits to experts and weights.  Kernels that do not route themselves use it as it is.

Sources: Shazeer et al., arXiv:1701.06538; groups and correction: DeepSeek-V3, arXiv:2412.19437.
"""

from __future__ import annotations

import torch

from allmetal.platform.specs import Routing

_TINY = 1e-20


def route(
    logits: torch.Tensor, routing: Routing, correction: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """logits [T, E] -> expert ids [T, top_k] int64 and weights [T, top_k], float32 or wider.

    Nothing here waits for the device.
    """
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    scores = wide.softmax(-1) if routing.scoring == "softmax" else wide.sigmoid()
    chosen_by = scores if correction is None else scores + correction.to(wide.dtype)
    if routing.num_groups > 1:
        chosen_by = _within_best_groups(chosen_by, routing)
    ids = chosen_by.topk(routing.top_k, dim=-1).indices
    weights = scores.gather(-1, ids)
    if routing.renormalize:
        weights = weights / (weights.sum(-1, keepdim=True) + _TINY)
    return ids, weights * routing.scale


def _within_best_groups(scores: torch.Tensor, routing: Routing) -> torch.Tensor:
    grouped: torch.Tensor = scores.unflatten(-1, (routing.num_groups, -1))
    worth = grouped.topk(2, dim=-1).values.sum(-1)
    best = worth.topk(routing.top_groups, dim=-1).indices
    outside = torch.ones_like(worth, dtype=torch.bool).scatter(-1, best, False)
    kept: torch.Tensor = grouped.masked_fill(outside.unsqueeze(-1), float("-inf"))
    return kept.flatten(-2)
