"""Attention in both directions, all sequences of a step at once.

Every token is compared with every other, and those of other sequences count nothing: so shapes
depend on the number of tokens alone.

Legend: T tokens, B sequences, H query heads, K key-value heads, D head dim.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from allmetal.platform.reference import encoder_attention as reference
from allmetal.platform.specs import EncoderAttentionOp, EncoderAttentionSpec
from allmetal_tpu.ops.kernel import XlaKernel, refuse_dtype

QUERIES_AT_ONCE = 512
"""Bounds the scores held in memory to this many rows."""


@dataclass(frozen=True, slots=True)
class _EncoderAttention:
    spec: EncoderAttentionSpec

    def __call__(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        query_start: torch.Tensor,
        host_query_lens: Sequence[int],
    ) -> torch.Tensor:
        spec, num_tokens = self.spec, q.shape[0]
        if not num_tokens:
            return torch.empty_like(q)
        at = torch.arange(num_tokens, device=q.device)
        row = torch.searchsorted(query_start[1:].long(), at, right=True)
        wide = q.float().view(num_tokens, spec.num_kv_heads, -1, spec.head_dim)
        keys, values = k.float(), v.float()
        parts = []
        for begin in range(0, num_tokens, QUERIES_AT_ONCE):
            here = slice(begin, begin + QUERIES_AT_ONCE)
            seen = row[here, None] == row
            if spec.window is not None:
                seen &= (at[here, None] - at).abs() < spec.window
            scores = torch.einsum("qkgd,skd->kgqs", wide[here], keys) * spec.scale
            weights = scores.masked_fill(~seen, float("-inf")).softmax(-1)
            parts.append(torch.einsum("kgqs,skd->qkgd", weights, values).flatten(1, 2))
        return torch.cat(parts).to(q.dtype)


def _refuse(spec: EncoderAttentionSpec) -> str | None:
    return refuse_dtype(spec.dtype) or reference.KERNEL.refuse(spec)


KERNEL: XlaKernel[EncoderAttentionSpec, EncoderAttentionOp] = XlaKernel(
    "xla_encoder_attention", _refuse, _EncoderAttention
)
