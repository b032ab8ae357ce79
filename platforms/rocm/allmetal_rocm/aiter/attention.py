"""Paged attention by aiter's Triton kernel for prefill and decode in one.

It takes its launches from shapes and from the batch's largest lengths alone, so a recorded step
serves every batch of its shape.  It computes what it should, and is refused all the same: where a
tile is as long as a block it reads the block whole, and multiplies what stands behind the
sequence's end by zero.  One sequence that overflowed would spoil others that get its blocks.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from allmetal.platform.batch import AttentionBatch
from allmetal.platform.contract import Support, Unsupported
from allmetal.platform.specs import AttentionOp, AttentionSpec
from allmetal_rocm.aiter import package

_LARGEST_GROUP = 128
_LARGEST_HEAD = 256
_READS_TOO_MUCH = (
    "it reads a sequence's last block whole, and what is no number behind the end reaches the"
    " result"
)


@dataclass(frozen=True, slots=True)
class AiterAttention:
    arch: str
    name: str = "aiter_attention"

    def supports(self, spec: AttentionSpec) -> Support:
        if reason := package.refuse(self.arch, spec.dtype) or _refuse(spec):
            return Unsupported(reason)
        return Unsupported(_READS_TOO_MUCH)

    def build(self, spec: AttentionSpec) -> AttentionOp:
        return _Op(spec)


def _refuse(spec: AttentionSpec) -> str | None:
    size, group = spec.block_size, spec.num_heads // max(1, spec.num_kv_heads)
    if spec.kv_dtype != spec.dtype:
        return f"keys and values must be in {spec.dtype}, not {spec.kv_dtype}"
    if spec.num_heads % spec.num_kv_heads or group > _LARGEST_GROUP:
        return (
            f"query heads must be a multiple of {spec.num_kv_heads}, up to {_LARGEST_GROUP} of"
            f" each, not {spec.num_heads}"
        )
    if not 16 <= spec.head_dim <= _LARGEST_HEAD:
        return f"head_dim must be 16 to {_LARGEST_HEAD}, not {spec.head_dim}"
    if size < 16 or size & (size - 1):
        return f"block_size must be a power of two from 16 on, not {size}"
    return None


class _Op:
    kv_layout = "nhd"

    def __init__(self, spec: AttentionSpec) -> None:
        self._spec = spec
        self._window = (-1, -1) if spec.window is None else (spec.window - 1, 0)
        module = "aiter.ops.triton.unified_attention"
        self._attend = package.function(module, "unified_attention")

    def cache_shape(self, num_blocks: int) -> tuple[int, ...]:
        s = self._spec
        return (num_blocks, 2, s.block_size, s.num_kv_heads, s.head_dim)

    def __call__(
        self,
        q: torch.Tensor,
        cache: torch.Tensor,
        batch: AttentionBatch,
        sinks: torch.Tensor | None = None,
    ) -> torch.Tensor:
        assert (sinks is not None) == self._spec.sinks
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        if q.shape[0]:
            self._attend(
                q=q,
                k=cache[:, 0],
                v=cache[:, 1],
                out=out,
                cu_seqlens_q=batch.query_start,
                max_seqlen_q=batch.max_query_len,
                seqused_k=batch.seq_lens,
                max_seqlen_k=batch.max_seq_len,
                softmax_scale=self._spec.scale,
                causal=True,
                window_size=self._window,
                block_table=batch.block_table,
                softcap=self._spec.soft_cap or 0.0,
                q_descale=None,
                k_descale=None,
                v_descale=None,
                sinks=sinks,
            )
        return out
