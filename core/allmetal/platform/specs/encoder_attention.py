"""Attention without a cache.

Legend: T tokens, B sequences, H query heads, K key-value heads, D head dim.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Protocol

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderAttentionSpec:
    """softmax(scale * q k^T) v within each sequence, every token seeing all of its own.

    `window`: a query at position p sees p - window + 1 .. p + window - 1 only.
    """

    family: ClassVar[str] = "encoder_attention"
    dtype: str
    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    window: int | None = None


class EncoderAttentionOp(Protocol):
    """q [T, H, D], k and v [T, K, D] -> out [T, H, D].

    Sequences lie one behind the other: `query_start` [B + 1] int32 says where, and
    `host_query_lens` [B] how long they are.
    """

    def __call__(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        query_start: torch.Tensor,
        host_query_lens: Sequence[int],
    ) -> torch.Tensor: ...
