"""Shapes of a transformer block.

A block takes (x, stream) and gives (x, stream): x is what the last branch produced, and its sum
with the residual stream is left to the next norm, which does it in the same pass.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import torch

from allmetal.platform.batch import Batch
from allmetal_models.layers.attention import Attention
from allmetal_models.layers.norm import AddRMSNorm, RMSNorm

Stream: TypeAlias = torch.Tensor | None


FeedForward: TypeAlias = Callable[[torch.Tensor], torch.Tensor]
"""x [T, C] -> [T, C], token by token."""


class Block(Protocol):
    @property
    def attention(self) -> Attention: ...
    def __call__(
        self, x: torch.Tensor, stream: Stream, batch: Batch
    ) -> tuple[torch.Tensor, Stream]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PreNormBlock:
    """s += attention(norm(s)); s += mlp(norm(s)).

    `branch_scale` multiplies what each branch adds.
    """

    attention_norm: AddRMSNorm
    attention: Attention
    mlp_norm: AddRMSNorm
    mlp: FeedForward
    branch_scale: float | None = None

    def __call__(
        self, x: torch.Tensor, stream: Stream, batch: Batch
    ) -> tuple[torch.Tensor, Stream]:
        x, stream = self.attention_norm(x, stream)
        x = self._scaled(self.attention(x, batch))
        x, stream = self.mlp_norm(x, stream)
        return self._scaled(self.mlp(x)), stream

    def _scaled(self, x: torch.Tensor) -> torch.Tensor:
        return x if self.branch_scale is None else x * self.branch_scale


@dataclass(frozen=True, slots=True, kw_only=True)
class SandwichBlock:
    """s += norm(attention(norm(s))); s += norm(mlp(norm(s)))."""

    attention_norm: AddRMSNorm
    attention: Attention
    attention_out_norm: RMSNorm
    mlp_norm: AddRMSNorm
    mlp: FeedForward
    mlp_out_norm: RMSNorm

    def __call__(
        self, x: torch.Tensor, stream: Stream, batch: Batch
    ) -> tuple[torch.Tensor, Stream]:
        x, stream = self.attention_norm(x, stream)
        x = self.attention_out_norm(self.attention(x, batch))
        x, stream = self.mlp_norm(x, stream)
        return self.mlp_out_norm(self.mlp(x)), stream


@dataclass(frozen=True, slots=True, kw_only=True)
class PostNormBlock:
    """s += norm(attention(s)); s += norm(mlp(s)).  Nothing is left to add."""

    attention: Attention
    attention_out_norm: RMSNorm
    mlp: FeedForward
    mlp_out_norm: RMSNorm

    def __call__(
        self, x: torch.Tensor, stream: Stream, batch: Batch
    ) -> tuple[torch.Tensor, Stream]:
        assert stream is None
        x = x + self.attention_out_norm(self.attention(x, batch))
        return x + self.mlp_out_norm(self.mlp(x)), None
