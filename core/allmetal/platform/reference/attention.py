"""Attention over a paged cache, one sequence after the other.

Source: Vaswani et al., arXiv:1706.03762; groups of heads arXiv:2305.13245; sinks
arXiv:2309.17453; soft cap arXiv:2408.00118.

Legend: Q queries, S keys, H query heads, K key-value heads, G = H / K, D head dim.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from allmetal.platform.batch import AttentionBatch
from allmetal.platform.reference.kernel import (
    ReferenceKernel,
    accumulator,
    as_bytes,
    refuse_cache_dtype,
    refuse_dtype,
)
from allmetal.platform.specs import AttentionOp, AttentionSpec

_QUERIES_AT_ONCE = 256
"""Bounds the scores held in memory to this many rows of a sequence."""


@dataclass(frozen=True, slots=True)
class _Attention:
    spec: AttentionSpec

    @property
    def kv_layout(self) -> str:
        return "nhd"

    def cache_shape(self, num_blocks: int) -> tuple[int, ...]:
        s = self.spec
        return (num_blocks, 2, s.block_size, s.num_kv_heads, s.head_dim)

    def __call__(
        self,
        q: torch.Tensor,
        cache: torch.Tensor,
        batch: AttentionBatch,
        sinks: torch.Tensor | None = None,
    ) -> torch.Tensor:
        assert (sinks is not None) == self.spec.sinks
        out = torch.empty_like(q)
        start = 0
        for row, (num_queries, seq_len) in enumerate(
            zip(batch.host_query_lens, batch.host_seq_lens, strict=True)
        ):
            for done in range(0, num_queries, _QUERIES_AT_ONCE):
                size = min(_QUERIES_AT_ONCE, num_queries - done)
                here = slice(start + done, start + done + size)
                position = seq_len - num_queries + done
                out[here] = self._attend(q[here], cache, batch.block_table[row], position, sinks)
            start += num_queries
        return out

    def _attend(
        self,
        q: torch.Tensor,
        cache: torch.Tensor,
        blocks: torch.Tensor,
        position: int,
        sinks: torch.Tensor | None,
    ) -> torch.Tensor:
        """q [Q, H, D], the first at `position` of its sequence -> [Q, H, D]."""
        spec, sums = self.spec, accumulator(self.spec.dtype)
        num_queries, stop = q.shape[0], position + q.shape[0]
        first = max(0, position + 1 - spec.window) if spec.window is not None else 0
        k, v = self._gather(cache, blocks, first, stop).to(sums).unbind(0)
        q_QKGD = q.to(sums).view(num_queries, spec.num_kv_heads, -1, spec.head_dim)
        scores = torch.einsum("qkgd,skd->kgqs", q_QKGD, k) * spec.scale
        if spec.soft_cap is not None:
            scores = spec.soft_cap * torch.tanh(scores / spec.soft_cap)
        at_query = torch.arange(position, stop, device=q.device)[:, None]
        at_key = torch.arange(first, stop, device=q.device)[None, :]
        hidden = at_key > at_query
        if spec.window is not None:
            hidden |= at_key <= at_query - spec.window
        scores = scores.masked_fill(hidden, float("-inf"))
        if sinks is not None:
            column = sinks.to(sums).view(spec.num_kv_heads, -1, 1, 1)
            scores = torch.cat([scores, column.expand(-1, -1, num_queries, 1)], dim=-1)
        weights = scores.softmax(-1)[..., : stop - first]
        return torch.einsum("kgqs,skd->qkgd", weights, v).flatten(1, 2).to(q.dtype)

    def _gather(
        self, cache: torch.Tensor, blocks: torch.Tensor, first: int, stop: int
    ) -> torch.Tensor:
        """Keys and values [2, S, K, D] of positions first .. stop - 1, and no others."""
        size = self.spec.block_size
        begin = first // size
        used = blocks[begin : -(-stop // size)].long()
        pages = as_bytes(cache)[used].view(cache.dtype).transpose(0, 1).flatten(1, 2)
        return pages[:, first - begin * size : stop - begin * size]


def _refuse(spec: AttentionSpec) -> str | None:
    if spec.num_heads % spec.num_kv_heads:
        return f"{spec.num_heads} query heads do not divide among {spec.num_kv_heads} of the cache"
    return refuse_dtype(spec.dtype) or refuse_cache_dtype(spec.kv_dtype)


KERNEL: ReferenceKernel[AttentionSpec, AttentionOp] = ReferenceKernel(_refuse, _Attention)
