"""Paged attention by the package's kernels for variable lengths.

Ranked behind Triton's, so only who names it gets it: it could not be seen here that what is no
number behind a sequence's end stays out of the result, as the contract wants.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from allmetal.platform.batch import AttentionBatch
from allmetal.platform.contract import Support, Supported, Unsupported
from allmetal.platform.specs import AttentionOp, AttentionSpec
from allmetal_xpu.vllm import package

_HEAD_SIZES = (64, 96, 128, 192, 256)
"""Source: the package's README, of its flash attention."""
_BEHIND_TRITON = 20


@dataclass(frozen=True, slots=True)
class VllmAttention:
    name: str = "vllm_attention"

    def supports(self, spec: AttentionSpec) -> Support:
        if reason := package.refuse(spec.dtype):
            return Unsupported(reason)
        if spec.kv_dtype != spec.dtype:
            return Unsupported(f"keys and values must be in {spec.dtype}, not {spec.kv_dtype}")
        if spec.num_heads % spec.num_kv_heads:
            return Unsupported(
                f"{spec.num_heads} query heads do not divide among {spec.num_kv_heads}"
            )
        if spec.head_dim not in _HEAD_SIZES:
            known = ", ".join(map(str, _HEAD_SIZES))
            return Unsupported(f"head_dim must be one of {known}, not {spec.head_dim}")
        if spec.block_size % 16:
            return Unsupported(f"block_size must be a multiple of 16, not {spec.block_size}")
        return Supported(rank=_BEHIND_TRITON)

    def build(self, spec: AttentionSpec) -> AttentionOp:
        return _Op(spec)


class _Op:
    kv_layout = "nhd"

    def __init__(self, spec: AttentionSpec) -> None:
        self._spec = spec
        self._before = -1 if spec.window is None else spec.window - 1
        self._attend = package.operator("_vllm_fa2_C", "varlen_fwd")

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
        spec = self._spec
        assert (sinks is not None) == spec.sinks
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        if not q.shape[0]:
            return out
        self._attend(
            q=q.contiguous(),
            k=cache[:, 0],
            v=cache[:, 1],
            out=out,
            cu_seqlens_q=batch.query_start,
            cu_seqlens_k=torch.zeros_like(batch.query_start),  # not read where `seqused_k` is given
            seqused_k=batch.seq_lens,
            leftpad_k=None,
            block_table=batch.block_table,
            alibi_slopes=None,
            max_seqlen_q=batch.max_query_len,
            max_seqlen_k=batch.max_seq_len,
            p_dropout=0.0,
            q_scale=None,
            k_scale=None,
            v_scale=None,
            softmax_scale=spec.scale,
            softmax_sink=sinks,
            zero_tensors=False,
            is_causal=True,
            window_size_left=self._before,
            window_size_right=-1 if spec.window is None else 0,
            softcap=spec.soft_cap or 0.0,
            return_softmax=False,
            gen=None,
            num_splits=None,
            mix_batch=False,
            splits_per_seq=None,
            work_list=None,
        )
        return out
