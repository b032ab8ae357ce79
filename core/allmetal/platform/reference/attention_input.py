"""From the fused QKV projection to attention's input: norm, rotate, write the cache.

Source: rotary embedding arXiv:2104.09864; QK norm arXiv:2302.05442.

Legend: T tokens, H query heads, K key-value heads, D head dim, R rotary dim.
"""

from __future__ import annotations

import torch

from allmetal.platform.reference.kernel import (
    CACHE_DTYPES,
    FLOAT_DTYPES,
    LAYOUTS,
    ReferenceKernel,
    accumulator,
    as_bytes,
    as_nhd,
    refuse_cache_dtype,
    refuse_dtype,
)
from allmetal.platform.reference.rms_norm import normalise
from allmetal.platform.specs import AttentionInputOp, AttentionInputSpec


def _refuse(spec: AttentionInputSpec) -> str | None:
    if spec.kv_layout not in LAYOUTS:
        return f"kv_layout must be one of {', '.join(LAYOUTS)}, not {spec.kv_layout}"
    if spec.rotary_dim % 2 or not 0 <= spec.rotary_dim <= spec.head_dim:
        return f"rotary_dim must be even and at most {spec.head_dim}, not {spec.rotary_dim}"
    return refuse_dtype(spec.dtype) or refuse_cache_dtype(spec.kv_dtype)


def _make(spec: AttentionInputSpec) -> AttentionInputOp:
    dtype, sums = FLOAT_DTYPES[spec.dtype], accumulator(spec.dtype)
    first_k, first_v = spec.num_heads, spec.num_heads + spec.num_kv_heads

    def attention_input(
        qkv: torch.Tensor,
        positions: torch.Tensor,
        cos_sin: torch.Tensor | None,
        cache: torch.Tensor,
        slot_mapping: torch.Tensor,
        q_weight: torch.Tensor | None = None,
        k_weight: torch.Tensor | None = None,
    ) -> torch.Tensor:
        heads = qkv.to(sums).view(qkv.shape[0], first_v + spec.num_kv_heads, spec.head_dim)
        q, k, v = heads[:, :first_k], heads[:, first_k:first_v], heads[:, first_v:]
        if spec.qk_norm != "none":
            assert q_weight is not None
            assert k_weight is not None
            q, k = _norm(spec, q, q_weight), _norm(spec, k, k_weight)
        if spec.rotary_dim:
            assert cos_sin is not None
            cos, sin = cos_sin[positions].to(sums)[:, None].chunk(2, dim=-1)
            q, k = _rotate(spec, q, cos, sin), _rotate(spec, k, cos, sin)
        # Rounded to the activation type first: the cache holds what was computed, no more.
        _write(spec, cache, slot_mapping, torch.stack([k, v], dim=1).to(dtype))
        return q.to(dtype).contiguous()

    return attention_input


def _norm(spec: AttentionInputSpec, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """x [T, heads, D]: each head on its own, or all heads of a token as one vector."""
    scale = weight.to(x.dtype) + spec.norm_offset
    if spec.qk_norm == "head":
        return normalise(x, spec.norm_eps) * scale
    return (normalise(x.flatten(1), spec.norm_eps) * scale).view_as(x)


def _rotate(
    spec: AttentionInputSpec, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
) -> torch.Tensor:
    """x [T, heads, D] with cos and sin [T, 1, R / 2]; channels from R on pass through."""
    turning, rest = x[..., : spec.rotary_dim], x[..., spec.rotary_dim :]
    if spec.interleaved:
        a, b = turning[..., 0::2], turning[..., 1::2]
    else:
        a, b = turning.chunk(2, dim=-1)
    pair = (a * cos - b * sin, b * cos + a * sin)
    turned = torch.stack(pair, dim=-1).flatten(-2) if spec.interleaved else torch.cat(pair, dim=-1)
    return torch.cat([turned, rest], dim=-1)


def _write(
    spec: AttentionInputSpec, cache: torch.Tensor, slots: torch.Tensor, kv: torch.Tensor
) -> None:
    """kv [T, 2, K, D] to its slots.  A narrow float type saturates: it has no infinity to spare."""
    kv_dtype = CACHE_DTYPES[spec.kv_dtype]
    if kv_dtype.itemsize == 1:
        limit = torch.finfo(kv_dtype).max
        kv = kv.clamp(-limit, limit)
    block, offset = slots // spec.block_size, slots % spec.block_size
    pages = as_nhd(as_bytes(cache), spec.kv_layout)
    pages[block, :, offset] = as_bytes(kv.to(kv_dtype))


KERNEL: ReferenceKernel[AttentionInputSpec, AttentionInputOp] = ReferenceKernel(_refuse, _make)
