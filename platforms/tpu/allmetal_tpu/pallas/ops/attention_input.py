"""The cache write for rows of whole lanes.  What comes before it is the reference's, which XLA
makes one loop of."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from allmetal.platform.contract import Support, Supported, Unsupported
from allmetal.platform.reference import attention_input as reference
from allmetal.platform.specs import AttentionInputOp, AttentionInputSpec
from allmetal_tpu.pallas.ops.attention import LANES_LAYOUT
from allmetal_tpu.pallas.ops.floats import refuse_dtype
from allmetal_tpu.pallas.shapes import cache_parts, cache_width

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class LanesAttentionInput:
    name: str = "lanes_attention_input"

    def supports(self, spec: AttentionInputSpec) -> Support:
        if spec.kv_layout != LANES_LAYOUT:
            return Unsupported(f"writes {LANES_LAYOUT}, not {spec.kv_layout}")
        if reason := refuse_dtype(spec.dtype):
            return Unsupported(reason)
        answer = reference.KERNEL.supports(replace(spec, kv_layout="nhd"))
        return answer if isinstance(answer, Unsupported) else Supported(rank=10)

    def build(self, spec: AttentionInputSpec) -> AttentionInputOp:
        return _AttentionInput(spec, reference.KERNEL.build(replace(spec, kv_layout="nhd")))


@dataclass(frozen=True, slots=True)
class _AttentionInput:
    spec: AttentionInputSpec
    plain: AttentionInputOp

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
        import torch
        from torch.nn import functional

        from allmetal.platform.reference.kernel import as_bytes

        spec, size, num_tokens = self.spec, self.spec.block_size, qkv.shape[0]
        blocks = -(-num_tokens // size)
        shape = (blocks, 2, size, spec.num_kv_heads, spec.head_dim)
        own = torch.empty(shape, dtype=cache.dtype, device=cache.device)
        slots = torch.arange(num_tokens, device=cache.device)
        q = self.plain(qkv, positions, cos_sin, own, slots, q_weight, k_weight)
        kv = as_bytes(own).transpose(1, 2).flatten(0, 1)[:num_tokens]  # [T, 2, K, D]
        if cache_parts(spec.head_dim) == 1:
            kv = torch.cat([kv[:, :1], kv[:, 1:]], dim=-1)
        kv = functional.pad(kv, (0, cache_width(spec.head_dim) - kv.shape[-1]))
        pages = as_bytes(cache).transpose(2, 3)
        pages[slot_mapping // size, :, slot_mapping % size] = kv
        return q
