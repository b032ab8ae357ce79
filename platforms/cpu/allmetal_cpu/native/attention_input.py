"""Split QKV, QK norm, rotary embedding and cache write, in one pass over a token."""

from __future__ import annotations

import torch

from allmetal.platform.specs import AttentionInputOp, AttentionInputSpec
from allmetal_cpu.native.kernel import NativeKernel, refuse_dtype, refuse_kv_dtype
from allmetal_cpu.native.library import Library, pointer

_NORMS = {"none": 0, "head": 1, "full": 2}
_MAX_HEAD_DIM = 1024


def _refuse(spec: AttentionInputSpec) -> str | None:
    if spec.kv_layout != "hnd":
        return f"writes the layout hnd, not {spec.kv_layout}"
    if spec.head_dim > _MAX_HEAD_DIM:
        return f"head_dim must be at most {_MAX_HEAD_DIM}, not {spec.head_dim}"
    return refuse_dtype(spec.dtype) or refuse_kv_dtype(spec.dtype, spec.kv_dtype)


class _Op:
    def __init__(self, spec: AttentionInputSpec, library: Library) -> None:
        s = spec
        self._run = library.function("attention_input", s.dtype)
        self._heads = (s.num_heads, s.head_dim)
        self._rest = (
            *(s.num_heads, s.num_kv_heads, s.head_dim, s.block_size, s.rotary_dim),
            *(int(s.interleaved), _NORMS[s.qk_norm], s.norm_eps, s.norm_offset),
        )

    def __call__(
        self,
        qkv: torch.Tensor,
        positions: torch.Tensor,
        cos_sin: torch.Tensor | None,
        cache: torch.Tensor,
        slot_mapping: torch.Tensor,
        q_weight: torch.Tensor | None = None,
        k_weight: torch.Tensor | None = None,
    ) -> torch.Tensor:
        qkv = qkv.contiguous()
        q = qkv.new_empty(qkv.shape[0], *self._heads)
        self._run(
            q.data_ptr(),
            qkv.data_ptr(),
            positions.data_ptr(),
            pointer(cos_sin),
            cache.data_ptr(),
            slot_mapping.data_ptr(),
            pointer(q_weight),
            pointer(k_weight),
            qkv.shape[0],
            *self._rest,
        )
        return q


ATTENTION_INPUT: NativeKernel[AttentionInputSpec, AttentionInputOp] = NativeKernel(_refuse, _Op)
