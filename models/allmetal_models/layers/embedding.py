"""Tokens to vectors and back.  Ranks share the vocabulary.

Legend: T tokens, N rows that are sampled, C channels, V vocabulary.
"""

from __future__ import annotations

import torch
from torch.nn import functional

from allmetal.platform.specs import GGUFWeight
from allmetal.quant.lookup import look_up
from allmetal_models.config import DecoderConfig
from allmetal_models.context import BuildContext
from allmetal_models.layers.formats import Rows, stored_format
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
        stored = stored_format(ctx, f"{at.name}.weight")
        self._table: _DenseTable | _BlockTable = (
            _BlockTable(stored, ctx.dtype) if isinstance(stored, GGUFWeight) else _DenseTable()
        )
        at.want("weight", (vocab_size, hidden_size), self._receive)

    def _receive(self, incoming: Incoming) -> None:
        self._table.receive(incoming, self._start, self._length)

    def __call__(self, token_ids: torch.Tensor) -> torch.Tensor:
        x = self._look_up(token_ids)
        return x if self._scale is None else x * self._scale

    def _look_up(self, token_ids: torch.Tensor) -> torch.Tensor:
        if self._sum is None:
            return self._table(token_ids)
        row = token_ids - self._start
        mine = (row >= 0) & (row < self._length)
        found = self._table(row.where(mine, 0))
        return self._sum(found.masked_fill_(~mine[:, None], 0))


class _DenseTable:
    """rows [T] -> [T, C]."""

    def __init__(self) -> None:
        self._values = torch.empty(0)

    def receive(self, incoming: Incoming, start: int, length: int) -> None:
        self._values = incoming.dense(0, start, length)

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        return functional.embedding(rows, self._values)


class _BlockTable:
    """As `_DenseTable`, kept in GGML blocks: rows are expanded when they are looked up.

    A large vocabulary is most of a small model, and a step needs few of its rows.
    """

    def __init__(self, stored: GGUFWeight, dtype: torch.dtype) -> None:
        self._stored, self._dtype = stored, dtype
        self._blocks = torch.empty(0)

    def receive(self, incoming: Incoming, start: int, length: int) -> None:
        self._blocks = incoming.blocks(self._stored, start, length)

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        return look_up(self._blocks, rows, self._stored.type, self._dtype)


class LMHead:
    """hidden [N, C] -> logits [N, V] float32, in `out` if given: soft_cap * tanh(y * scale /
    soft_cap).

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

    def __call__(self, hidden: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        y = self._linear(hidden)
        if self._communicator is not None:
            y = self._communicator.all_gather(y.float(), dim=-1)
        y = y.float() if out is None else out.copy_(y)
        if self._scale is not None:
            y = torch.mul(y, self._scale, out=out)
        if self._soft_cap is not None:
            y = torch.div(y, self._soft_cap, out=out)
            y = torch.tanh(y, out=out)
            y = torch.mul(y, self._soft_cap, out=out)
        return y
