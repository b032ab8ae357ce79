"""Attention in both directions by torch's fused operator, a sequence at a time."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.nn.functional import scaled_dot_product_attention

from allmetal.platform.contract import Support, Supported, Unsupported
from allmetal.platform.specs import EncoderAttentionOp, EncoderAttentionSpec


class TorchEncoderAttention:
    name = "torch"

    def supports(self, spec: EncoderAttentionSpec) -> Support:
        if spec.num_heads % spec.num_kv_heads:
            return Unsupported("heads do not share key-value heads equally")
        if spec.dtype not in ("float32", "bfloat16"):
            return Unsupported(f"computes in float32 and bfloat16, not {spec.dtype}")
        return Supported(rank=20)

    def build(self, spec: EncoderAttentionSpec) -> EncoderAttentionOp:
        return _Op(spec)


class _Op:
    def __init__(self, spec: EncoderAttentionSpec) -> None:
        self._spec = spec

    def __call__(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        query_start: torch.Tensor,
        host_query_lens: Sequence[int],
    ) -> torch.Tensor:
        out = torch.empty(q.shape, dtype=q.dtype)
        begin = 0
        for length in host_query_lens:
            here = slice(begin, begin + length)
            out[here] = self._sequence(q[here], k[here], v[here])
            begin += length
        return out

    def _sequence(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        spec, length = self._spec, q.shape[0]
        q, k, v = (x.transpose(0, 1).unsqueeze(0) for x in (q, k, v))
        near = None
        if spec.window is not None and spec.window < length:
            at = torch.arange(length)
            near = (at[:, None] - at[None, :]).abs() < spec.window
        out = scaled_dot_product_attention(
            q,
            k,
            v,
            attn_mask=near,
            scale=spec.scale,
            enable_gqa=spec.num_heads != spec.num_kv_heads,
        )
        return out.squeeze(0).transpose(0, 1)
