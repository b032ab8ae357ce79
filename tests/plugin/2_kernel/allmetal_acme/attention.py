"""Paged attention: all sequences of a batch in one call, where the reference takes one by one.

Lengths are read on the device only, so that a decode step can be recorded and replayed.

Legend: B sequences, Q queries a sequence at most, S keys a sequence at most, H query heads,
K key-value heads, D head dim.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn.functional import scaled_dot_product_attention

from allmetal.platform.batch import AttentionBatch
from allmetal.platform.contract import Support, Supported, Unsupported
from allmetal.platform.specs import AttentionOp, AttentionSpec


@dataclass(frozen=True, slots=True)
class AcmeAttention:
    name: str = "acme_attention"

    def supports(self, spec: AttentionSpec) -> Support:
        if spec.dtype != "float32" or spec.kv_dtype != "float32":
            return Unsupported(f"dtype must be float32, not {spec.dtype} over {spec.kv_dtype}")
        if spec.soft_cap is not None:
            return Unsupported("the score unit has no tanh for soft_cap")
        if spec.sinks:
            return Unsupported("the softmax unit takes no sinks")
        return Supported()

    def build(self, spec: AttentionSpec) -> AttentionOp:
        return PagedAttention(spec)


@dataclass(frozen=True, slots=True)
class PagedAttention:
    spec: AttentionSpec
    kv_layout: str = "nhd"

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
        if not len(q):
            return torch.empty_like(q)
        starts, lens = batch.query_start[:-1].long(), batch.seq_lens.long()
        counts = batch.query_start.diff().long()
        ramp = torch.arange(batch.max_query_len, device=q.device)
        mine = ramp < counts[:, None]  # [B, Q]
        # Where a sequence has fewer queries, its first stands in, and nobody looks at the result.
        rows = (starts[:, None] + ramp).where(mine, starts[:, None])
        position = (lens - counts)[:, None] + ramp  # [B, Q]
        table, size = batch.block_table.long(), self.spec.block_size
        begins = torch.arange(0, table.shape[1] * size, size, device=q.device)
        table = table.where(begins < lens[:, None], 0)  # behind the end it can hold anything
        pages = cache[table].transpose(1, 2).flatten(2, 3)  # [B, 2, S, K, D]
        place = torch.arange(pages.shape[2], device=q.device)
        known = place < lens[:, None]  # [B, S]
        if self.spec.window is not None:  # what lies before it may be somebody else's by now
            known &= place > (lens - counts)[:, None] - self.spec.window
        pages = pages.masked_fill(~known[:, None, :, None, None], 0.0)
        k_BKSD, v_BKSD = pages.transpose(2, 3).unbind(1)
        seen = known[:, None] & (place <= position[..., None])  # [B, Q, S]
        if self.spec.window is not None:
            seen &= place > position[..., None] - self.spec.window
        out_BHQD = scaled_dot_product_attention(
            q[rows].transpose(1, 2),
            k_BKSD,
            v_BKSD,
            attn_mask=seen[:, None],
            scale=self.spec.scale,
            enable_gqa=True,
        )
        if batch.max_query_len <= 1:
            return out_BHQD.squeeze(2)
        out = torch.empty_like(q)
        out[rows[mine]] = out_BHQD.transpose(1, 2)[mine]
        return out
