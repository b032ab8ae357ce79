"""From the fused projection to attention's input: `npu_rms_norm`, `npu_rotary_mul`,
`npu_scatter_pa_kv_cache`.

Cosines and sines are rounded to the activations' type, as the operator wants them.

Legend: T tokens, H query heads, K key-value heads, D head dim, R rotary dim.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from allmetal.platform.contract import Support, Supported, Unsupported
from allmetal.platform.specs import AttentionInputOp, AttentionInputSpec
from allmetal_ascend.chips import Chip
from allmetal_ascend.ops.dtypes import FLOAT, refuse_dtype

LAYOUT = "split_nhd"
_MOST_HEADS, _WIDEST = 1000, 896
"""Bounds of npu_rotary_mul."""


@dataclass(frozen=True, slots=True)
class NpuAttentionInput:
    chip: Chip
    name: str = "npu_attention_input"

    def supports(self, spec: AttentionInputSpec) -> Support:
        refused = refuse_dtype(self.chip, spec.dtype, FLOAT) or self._refuse(spec)
        return Supported() if refused is None else Unsupported(refused)

    def _refuse(self, spec: AttentionInputSpec) -> str | None:
        if not self.chip.fused_attention:
            return f"{self.chip.arch} keeps its cache in an order of elements of its own"
        if spec.kv_dtype != spec.dtype:
            return f"kv_dtype must be {spec.dtype} too, not {spec.kv_dtype}"
        if spec.kv_layout != LAYOUT:
            return f"kv_layout must be {LAYOUT}, not {spec.kv_layout}"
        if spec.qk_norm != "none" and spec.norm_offset not in (0.0, 1.0):
            return f"norm_offset must be 0 or 1, not {spec.norm_offset:g}"
        if spec.num_heads + spec.num_kv_heads >= _MOST_HEADS or spec.rotary_dim >= _WIDEST:
            return f"npu_rotary_mul takes fewer than {_MOST_HEADS} heads and {_WIDEST} channels"
        if spec.rotary_dim % 2:
            return f"rotary_dim must be even, not {spec.rotary_dim}"
        return None

    def build(self, spec: AttentionInputSpec) -> AttentionInputOp:
        return _AttentionInput(spec)


@dataclass(frozen=True, slots=True)
class _AttentionInput:
    spec: AttentionInputSpec

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
        spec, num_tokens = self.spec, qkv.shape[0]
        if not num_tokens:
            return qkv.new_empty(0, spec.num_heads, spec.head_dim)
        heads = spec.num_heads + spec.num_kv_heads
        whole = qkv.view(num_tokens, heads + spec.num_kv_heads, spec.head_dim)
        qk, v = whole[:, :heads], whole[:, heads:].contiguous()
        if spec.qk_norm != "none":
            assert q_weight is not None
            assert k_weight is not None
            q, k = qk[:, : spec.num_heads], qk[:, spec.num_heads :]
            qk = torch.cat([self._norm(q, q_weight), self._norm(k, k_weight)], dim=1)
        if spec.rotary_dim:
            assert cos_sin is not None
            qk = self._rotate(qk, cos_sin.index_select(0, positions).to(qkv.dtype))
        q, k = qk[:, : spec.num_heads].contiguous(), qk[:, spec.num_heads :].contiguous()
        torch.ops.npu.npu_scatter_pa_kv_cache(
            k, v, cache[0], cache[1], slot_mapping, cache_mode="Norm"
        )
        return q

    def _norm(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """x [T, heads, D]: each head on its own, or all heads of a token as one vector."""
        spec, ops = self.spec, torch.ops.npu
        rows = (x if spec.qk_norm == "head" else x.flatten(1)).contiguous()
        norm = ops.npu_gemma_rms_norm if spec.norm_offset else ops.npu_rms_norm
        y: torch.Tensor = norm(rows, weight.to(x.dtype), spec.norm_eps)[0]
        return y.view(x.shape)

    def _rotate(self, x: torch.Tensor, cos_sin: torch.Tensor) -> torch.Tensor:
        """x [T, heads, D] with cosines and sines [T, R]; channels from R on pass through."""
        spec = self.spec
        cos, sin = cos_sin.chunk(2, dim=-1)
        if spec.interleaved:
            twice = [part.repeat_interleave(2, dim=-1) for part in (cos, sin)]
        else:
            twice = [torch.cat([part, part], dim=-1) for part in (cos, sin)]
        mode = "interleave" if spec.interleaved else "half"
        cos_1T1R, sin_1T1R = (part[None, :, None].contiguous() for part in twice)
        turning = x[..., : spec.rotary_dim].contiguous()
        turned: torch.Tensor = torch.ops.npu.npu_rotary_mul(
            turning[None], cos_1T1R, sin_1T1R, rotary_mode=mode
        )[0]
        rest = x[..., spec.rotary_dim :]
        return turned if not rest.shape[-1] else torch.cat([turned, rest], dim=-1)
