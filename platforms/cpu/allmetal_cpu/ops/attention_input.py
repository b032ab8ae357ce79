"""Split QKV, QK norm, rotary embedding and cache write with torch's operators."""

from __future__ import annotations

import torch

from allmetal.platform.contract import Support, Supported, Unsupported
from allmetal.platform.specs import AttentionInputOp, AttentionInputSpec
from allmetal_cpu.ops.rms_norm import rms_norm


class TorchAttentionInput:
    name = "torch"

    def supports(self, spec: AttentionInputSpec) -> Support:
        if spec.kv_layout != "hnd":
            return Unsupported(f"writes the layout hnd, not {spec.kv_layout}")
        if spec.kv_dtype != spec.dtype:
            return Unsupported(f"keeps keys and values in {spec.dtype}, not {spec.kv_dtype}")
        return Supported(rank=20)

    def build(self, spec: AttentionInputSpec) -> AttentionInputOp:
        return _Op(spec)


class _Op:
    # T tokens, H query heads, K key-value heads, D head dim
    def __init__(self, spec: AttentionInputSpec) -> None:
        self._spec = spec

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
        s = self._spec
        num_tokens = qkv.shape[0]
        heads = qkv.view(num_tokens, s.num_heads + 2 * s.num_kv_heads, s.head_dim)
        q, k, v = heads.split([s.num_heads, s.num_kv_heads, s.num_kv_heads], dim=1)
        q, k = self._norm(q, q_weight), self._norm(k, k_weight)
        if cos_sin is not None and s.rotary_dim:
            cos, sin = cos_sin[positions].unsqueeze(1).chunk(2, dim=-1)  # [T, 1, R / 2]
            q, k = self._rotate(q, cos, sin), self._rotate(k, cos, sin)
        block = slot_mapping // s.block_size
        offset = slot_mapping % s.block_size
        cache[block, 0, :, offset] = k.to(cache.dtype)
        cache[block, 1, :, offset] = v.to(cache.dtype)
        return q.contiguous()

    def _norm(self, x: torch.Tensor, weight: torch.Tensor | None) -> torch.Tensor:
        s = self._spec
        if s.qk_norm == "none" or weight is None:
            return x
        rows = x if s.qk_norm == "head" else x.flatten(1)
        return rms_norm(rows, weight, s.norm_eps, s.norm_offset, False).view(x.shape)

    def _rotate(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        """Leading `rotary_dim` channels, in float32."""
        s = self._spec
        rotary = x[..., : s.rotary_dim].float()
        if s.interleaved:
            a, b = rotary[..., 0::2], rotary[..., 1::2]
            turned = torch.stack((a * cos - b * sin, b * cos + a * sin), dim=-1).flatten(-2)
        else:
            a, b = rotary.chunk(2, dim=-1)
            turned = torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)
        turned = turned.to(x.dtype)
        if s.rotary_dim == s.head_dim:
            return turned
        return torch.cat((turned, x[..., s.rotary_dim :]), dim=-1)
