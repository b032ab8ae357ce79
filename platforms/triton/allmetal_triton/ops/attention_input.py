"""Split, QK norm, rotary embedding and cache write in one launch.

Bytes moved: the projection's T (H + 2 K) D elements once in and once out, half of them to the
cache where H = 2 K.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton

from allmetal.platform.contract import Support, Supported, Unsupported
from allmetal.platform.specs import AttentionInputOp, AttentionInputSpec
from allmetal_triton.jit.attention_input import attention_input
from allmetal_triton.target import Target, halved, refuse_cache_dtype, refuse_dtype

_LAYOUTS = ("nhd", "hnd")
_FEW_TOKENS = 64
_LIMITS = {"float8_e4m3fn": 448.0, "float8_e5m2": 57344.0}


@dataclass(frozen=True, slots=True)
class TritonAttentionInput:
    target: Target
    name: str = "triton_attention_input"

    def supports(self, spec: AttentionInputSpec) -> Support:
        if reason := refuse_dtype(self.target, spec.dtype):
            return Unsupported(reason)
        if reason := refuse_cache_dtype(self.target, spec.kv_dtype):
            return Unsupported(reason)
        if spec.kv_layout not in _LAYOUTS:
            known = ", ".join(_LAYOUTS)
            return Unsupported(f"kv_layout must be one of {known}, not {spec.kv_layout}")
        if spec.rotary_dim % 2 or not 0 <= spec.rotary_dim <= spec.head_dim:
            return Unsupported(
                f"rotary_dim must be even and at most {spec.head_dim}, not {spec.rotary_dim}"
            )
        return Supported(rank=10)

    def build(self, spec: AttentionInputSpec) -> AttentionInputOp:
        return _Op(spec, self.target)


class _Op:
    def __init__(self, spec: AttentionInputSpec, target: Target) -> None:
        self._options = target.launch_options
        up = triton.next_power_of_2
        self._spec = spec
        narrow = halved(target, spec.kv_dtype)
        self._write_as = None if narrow is None else getattr(torch, narrow)
        self._num_heads = spec.num_heads + 2 * spec.num_kv_heads
        self._pairs = up(max(1, spec.rotary_dim // 2))
        self._rest = up(max(1, spec.head_dim - spec.rotary_dim))
        self._q_block = up(spec.num_heads * spec.head_dim)
        self._k_block = up(spec.num_kv_heads * spec.head_dim)

    def _heads_at_once(self, num_tokens: int) -> int:
        """Few tokens are spread over many programs; many keep every one busy."""
        values = 512 if num_tokens <= _FEW_TOKENS else 2048
        at_most: int = triton.next_power_of_2(self._num_heads)
        padded: int = triton.next_power_of_2(self._spec.head_dim)
        return max(1, min(at_most, values // padded))

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
        spec, num_tokens = self._spec, qkv.shape[0]
        shape = (num_tokens, spec.num_heads, spec.head_dim)
        q = torch.empty(shape, dtype=qkv.dtype, device=qkv.device)
        if not num_tokens:
            return q
        block_stride, value_offset, token_stride, head_stride = cache.stride()[:4]
        if spec.kv_layout == "hnd":
            token_stride, head_stride = head_stride, token_stride
        if self._write_as is not None:
            cache = cache.view(self._write_as)
        heads = self._heads_at_once(num_tokens)
        attention_input[(num_tokens, triton.cdiv(self._num_heads, heads))](
            qkv,
            positions,
            cos_sin,
            cache,
            slot_mapping,
            q_weight,
            k_weight,
            q,
            qkv.stride(0),
            block_stride,
            value_offset,
            token_stride,
            head_stride,
            Q_HEADS=spec.num_heads,
            KV_HEADS=spec.num_kv_heads,
            DIM=spec.head_dim,
            PAGE=spec.block_size,
            ROTARY=spec.rotary_dim,
            INTERLEAVED=spec.interleaved,
            NORM=spec.qk_norm,
            EPS=spec.norm_eps,
            OFFSET=spec.norm_offset,
            LIMIT=_LIMITS.get(spec.kv_dtype),
            A=self._pairs,
            C=self._rest,
            B=heads,
            Q_BLOCK=self._q_block,
            K_BLOCK=self._k_block,
            num_warps=4,
            **self._options,
        )
        return q
