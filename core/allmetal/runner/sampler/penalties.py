"""Penalties for tokens a sequence already holds.

Repetition (Keskar et al., CTRL, 2019): positive logits of tokens in the prompt or the output are
divided by the penalty, negative ones multiplied.  Presence and frequency (the OpenAI API): a
token of the output loses `presence` once and `frequency` for each occurrence.

Legend: R rows of logits, B of them penalised, V vocabulary, L longest history.
"""

from __future__ import annotations

import torch


def penalise(
    logits: torch.Tensor,
    rows: torch.Tensor,
    history: torch.Tensor,
    lengths: torch.Tensor,
    num_prompt: torch.Tensor,
    *,
    repetition: torch.Tensor | None,
    presence: torch.Tensor | None,
    frequency: torch.Tensor | None,
) -> None:
    """Change logits [R, V] float32, contiguous, at `rows` [B] and the tokens of their history.

    history [B, L] integer, of which the first `lengths` [B], at least one, are tokens and of
    those the first `num_prompt` [B] the prompt.  The penalties are [B] float32; None where no row
    has them.  `presence` and `frequency` come together.
    """
    vocab = logits.shape[1]
    place = torch.arange(history.shape[1], device=history.device)
    known = place < lengths[:, None]
    # What lies behind the end stands for the first token: equal ids carry equal results below, so
    # whichever of their writes comes last is right.
    ids = torch.where(known, history, history[:, :1]).to(torch.int64)
    places = (ids + (rows * vocab)[:, None]).view(-1)
    flat = logits.view(-1)
    scores = flat.index_select(0, places).view(ids.shape)
    if repetition is not None:
        factor = repetition[:, None]
        scores = torch.where(scores > 0, scores / factor, scores * factor)
    if presence is not None and frequency is not None:
        output = (known & (place >= num_prompt[:, None])).to(torch.float32)
        counts = logits.new_zeros(len(rows), vocab).scatter_add_(1, ids, output).gather(1, ids)
        scores = scores - presence[:, None] * (counts > 0) - frequency[:, None] * counts
    flat.scatter_(0, places, scores.view(-1))
