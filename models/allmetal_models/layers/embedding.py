"""Tokens to vectors and back.  Ranks share the vocabulary.

Legend: T tokens, N rows that are sampled, C channels, V vocabulary.
"""

from __future__ import annotations

import torch
from torch.nn import functional

from allmetal_models.config import DecoderConfig
from allmetal_models.context import BuildContext
from allmetal_models.layers.formats import Rows
from allmetal_models.layers.linear import Linear
from allmetal_models.layers.scope import Incoming, Scope


def root_scale(config: DecoderConfig, ctx: BuildContext) -> float:
    """sqrt(C) as the model's dtype holds it, which is how Gemma scales its embeddings."""
    return torch.tensor(config.hidden_size**0.5, dtype=ctx.dtype).item()


class VocabEmbedding:
    """token_ids [T] -> scale * table[token_ids] [T, C]."""

    def __init__(
        self, at: Scope, vocab_size: int, hidden_size: int, *, scale: float | None = None
    ) -> None:
        ctx = at.ctx
        self._start, self._length = ctx.share(vocab_size, "tokens of the vocabulary")
        self._scale = scale
        self._sum = ctx.communicator.all_reduce if ctx.communicator else None
        self._table = torch.empty(0)
        at.want("weight", (vocab_size, hidden_size), self._receive)

    def _receive(self, incoming: Incoming) -> None:
        self._table = incoming.dense(0, self._start, self._length)

    def __call__(self, token_ids: torch.Tensor) -> torch.Tensor:
        x = self._look_up(token_ids)
        return x if self._scale is None else x * self._scale

    def _look_up(self, token_ids: torch.Tensor) -> torch.Tensor:
        if self._sum is None:
            return functional.embedding(token_ids, self._table)
        row = token_ids - self._start
        mine = (row >= 0) & (row < self._length)
        found = functional.embedding(row.where(mine, 0), self._table)
        return self._sum(found.masked_fill_(~mine[:, None], 0))


class LMHead:
    """hidden [N, C] -> logits [N, V] float32: soft_cap * tanh(y * scale / soft_cap).

    `at` is the embedding's place where the two are tied: then one tensor serves both.
    """

    def __init__(
        self,
        at: Scope,
        vocab_size: int,
        hidden_size: int,
        *,
        scale: float | None = None,
        soft_cap: float | None = None,
    ) -> None:
        ctx = at.ctx
        mine = ctx.share(vocab_size, "tokens of the vocabulary")
        rows = Rows(at=at, total=vocab_size, ranges=(mine,))
        self._linear = Linear([rows], hidden_size)
        self._communicator = ctx.communicator
        self._scale, self._soft_cap = scale, soft_cap

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        y = self._linear(hidden).float()
        if self._communicator is not None:
            y = self._communicator.all_gather(y, dim=-1)
        if self._scale is not None:
            y = y * self._scale
        if self._soft_cap is not None:
            y = self._soft_cap * torch.tanh(y / self._soft_cap)
        return y
