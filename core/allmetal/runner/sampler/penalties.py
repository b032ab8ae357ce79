"""Penalties for tokens a sequence already holds.

Repetition (Keskar et al., CTRL, 2019): positive logits of tokens in the prompt or the output are
divided by the penalty, negative ones multiplied.  Presence and frequency (the OpenAI API): a
token of the output loses `presence` once and `frequency` for each occurrence.

Legend: B rows, V vocabulary, L longest history.
"""

from __future__ import annotations

import torch


def penalise(
    logits: torch.Tensor,
    history: torch.Tensor,
    lengths: torch.Tensor,
    num_prompt: torch.Tensor,
    *,
    repetition: torch.Tensor | None,
    presence: torch.Tensor | None,
    frequency: torch.Tensor | None,
) -> torch.Tensor:
    """logits [B, V] float32 -> the penalised ones, a new tensor.

    history [B, L] integer, of which the first `lengths` [B] are tokens and of those the first
    `num_prompt` [B] the prompt.  The penalties are [B] float32; None where no row has them.
    `presence` and `frequency` come together.
    """
    num_rows, vocab = logits.shape
    work = logits.new_empty(num_rows, vocab + 1)  # the last column takes what stands for no token
    work[:, :vocab] = logits
    work[:, vocab] = 0
    place = torch.arange(history.shape[1], device=history.device)
    known = place < lengths[:, None]
    if repetition is not None:
        ids = torch.where(known, history, vocab).to(torch.int64)
        scores = work.gather(1, ids)
        factor = repetition[:, None]
        work.scatter_(1, ids, torch.where(scores > 0, scores / factor, scores * factor))
    if presence is not None and frequency is not None:
        output = known & (place >= num_prompt[:, None])
        ids = torch.where(output, history, vocab).to(torch.int64)
        ones = torch.ones((), device=work.device).expand(ids.shape)
        counts = torch.zeros_like(work).scatter_add_(1, ids, ones).gather(1, ids)
        # Equal ids carry equal counts, so whichever of their writes comes last is right.
        scores = work.gather(1, ids) - presence[:, None] - frequency[:, None] * counts
        work.scatter_(1, ids, scores)
    return work[:, :vocab]
