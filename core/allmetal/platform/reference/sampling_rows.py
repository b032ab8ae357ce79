"""Logits to tokens for all rows at once, in torch's operators, for devices that take them so.

What the reference does row by row.  A device says how it adds along a row, since not every one can
take a running sum by `cumsum`.

Legend: B rows, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from allmetal.platform.specs import SamplingOp, SamplingSpec

KeepTopP = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
Draw = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def make(spec: SamplingSpec, keep_top_p: KeepTopP, draw: Draw) -> SamplingOp:
    """`keep_top_p`: masses [B, V] and top_p [B, 1] to masses, 0 where a token is dropped; `draw`:
    masses and uniform [B, 1] in [0, 1) to tokens [B]."""

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
            masses = keep_top_p(masses, top_p[:, None])
        return torch.where(temperature > 0, draw(masses, uniform[:, None]), greedy)

    return sampling


def _keep_top_k(logs: torch.Tensor, top_k: torch.Tensor) -> torch.Tensor:
    """Tokens no less likely than the k-th; 0 is off."""
    size = logs.shape[1]
    last = torch.where(top_k > 0, top_k.clamp(max=size), size).long() - 1
    lowest = logs.sort(dim=-1, descending=True).values.gather(1, last[:, None])
    return logs.masked_fill(logs < lowest, float("-inf"))
