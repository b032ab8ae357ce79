"""Attention in both directions, a sequence at a time.

Source: Vaswani et al., arXiv:1706.03762.  Legend: T tokens, H query heads, K key-value heads, D
head dim, L tokens of a sequence.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from allmetal.platform.reference.kernel import (
    FLOAT_DTYPES,
    ReferenceKernel,
    accumulator,
    refuse_dtype,
)
from allmetal.platform.specs import EncoderAttentionOp, EncoderAttentionSpec


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
        lens = list(host_query_lens)
        each = zip(q.split(lens), k.split(lens), v.split(lens), strict=True)
        parts = [self._sequence(*one) for one in each]
        return torch.cat(parts) if parts else torch.empty_like(q)

    def _sequence(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        spec, sums = self.spec, accumulator(self.spec.dtype)
        group = spec.num_heads // spec.num_kv_heads
        q, k, v = (x.to(sums).transpose(0, 1) for x in (q, k, v))  # [heads, L, D]
        k, v = (x.repeat_interleave(group, dim=0) for x in (k, v))
        scores = spec.scale * q @ k.transpose(1, 2)
        if spec.window is not None:
            at = torch.arange(q.shape[1], device=q.device)
            far = (at[:, None] - at[None, :]).abs() >= spec.window
            scores = scores.masked_fill(far, float("-inf"))
        out: torch.Tensor = scores.softmax(-1) @ v
        return out.transpose(0, 1).to(FLOAT_DTYPES[spec.dtype])


def _refuse(spec: EncoderAttentionSpec) -> str | None:
    if spec.num_heads % spec.num_kv_heads:
        return f"{spec.num_heads} heads do not share {spec.num_kv_heads} key-value heads equally"
    if spec.window is not None and spec.window < 1:
        return f"window must be at least 1, not {spec.window}"
    return refuse_dtype(spec.dtype)


KERNEL: ReferenceKernel[EncoderAttentionSpec, EncoderAttentionOp] = ReferenceKernel(
    _refuse, _EncoderAttention
)
