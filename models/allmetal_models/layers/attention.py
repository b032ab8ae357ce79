"""Attention: project, norm and rotate, write the cache, attend, project back.

Legend: T tokens, H query heads, K key-value heads, D head dim, C channels.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import torch

from allmetal.errors import ConfigError
from allmetal.platform.batch import Batch
from allmetal.platform.kv import KVSpec
from allmetal.platform.specs import AttentionInputSpec, AttentionSpec, KVLayout
from allmetal_models.config import DecoderConfig
from allmetal_models.layers.linear import Linear, RowLinear
from allmetal_models.layers.norm import Norm
from allmetal_models.layers.rope import Rotary
from allmetal_models.layers.scope import Scope
from allmetal_models.layers.sharding import HeadShare, fused_rows, separate_rows, share_heads

QKNorm: TypeAlias = Literal["none", "head", "full"]


class Attention:
    """x [T, C] -> [T, C], reading and writing this layer's cache.

    `rope` None: no positions.  `scale` None: 1 / sqrt(D).  `qk_norm`: see AttentionInputSpec.
    `fused`: the name of the one tensor that holds q, k and v in the checkpoint.
    """

    def __init__(
        self,
        at: Scope,
        config: DecoderConfig,
        *,
        rope: Rotary | None,
        window: int | None = None,
        scale: float | None = None,
        soft_cap: float | None = None,
        qkv_bias: bool = False,
        out_bias: bool = False,
        qk_norm: QKNorm = "none",
        norm: Norm | None = None,
        fused: str | None = None,
    ) -> None:
        ctx = at.ctx
        heads = share_heads(ctx, config)
        rows = fused_rows(at / fused, heads.shards) if fused else separate_rows(at, heads.shards)
        self.qkv = Linear(rows, config.hidden_size, bias=qkv_bias)
        self.out = RowLinear(
            at / "o_proj", config.num_heads * config.head_dim, config.hidden_size, bias=out_bias
        )
        self.spec = AttentionSpec(
            dtype=ctx.dtype_name,
            kv_dtype=ctx.kv_dtype,
            num_heads=heads.num_heads,
            num_kv_heads=heads.num_kv_heads,
            head_dim=config.head_dim,
            block_size=ctx.block_size,
            scale=config.head_dim**-0.5 if scale is None else scale,
            window=window,
            soft_cap=soft_cap,
        )
        self.op = ctx.kernels.bind(self.spec)
        self.kv_spec = KVSpec(
            kind="full" if window is None else "sliding_window",
            num_kv_heads=heads.num_kv_heads,
            head_dim=config.head_dim,
            dtype=ctx.kv_dtype,
            window=window,
        )
        self._cos_sin = rope.cos_sin if rope else None
        self._q_weight, self._k_weight = _norm_weights(at, heads, config.head_dim, qk_norm)
        self._input = ctx.kernels.bind(
            _input_spec(self.spec, self.op.kv_layout, config.norm_eps, rope, qk_norm, norm)
        )
        self._cache = torch.empty(0)
        self._group = 0

    def bind_cache(self, cache: torch.Tensor, group: int) -> None:
        """`group`: which of a batch's KV groups this layer's blocks are listed in."""
        self._cache, self._group = cache, group

    def __call__(self, x: torch.Tensor, batch: Batch) -> torch.Tensor:
        group = batch.groups[self._group]
        q = self._input(
            self.qkv(x),
            batch.positions,
            self._cos_sin,
            self._cache,
            group.slot_mapping,
            self._q_weight,
            self._k_weight,
        )
        return self.out(self.op(q, self._cache, group).flatten(1))


def _input_spec(
    spec: AttentionSpec,
    kv_layout: KVLayout,
    eps: float,
    rope: Rotary | None,
    qk_norm: QKNorm,
    norm: Norm | None,
) -> AttentionInputSpec:
    return AttentionInputSpec(
        dtype=spec.dtype,
        kv_dtype=spec.kv_dtype,
        num_heads=spec.num_heads,
        num_kv_heads=spec.num_kv_heads,
        head_dim=spec.head_dim,
        block_size=spec.block_size,
        kv_layout=kv_layout,
        rotary_dim=rope.dim if rope else 0,
        interleaved=rope.interleaved if rope else False,
        qk_norm=qk_norm,
        norm_eps=norm.eps if norm else eps,
        norm_offset=norm.offset if norm else 0.0,
    )


def _norm_weights(
    at: Scope, heads: HeadShare, head_dim: int, kind: QKNorm
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    if kind == "none":
        return None, None
    if kind == "full" and at.ctx.tp_size > 1:
        raise ConfigError(
            "the norm over all heads of queries and keys cannot be shared among ranks",
            hint="run this model on one device",
        )
    q, k, _ = heads.shards
    sizes = (head_dim, head_dim) if kind == "head" else (q.total, k.total)
    q_size, k_size = sizes
    return (
        (at / "q_norm").parameter("weight", (q_size,)),
        (at / "k_norm").parameter("weight", (k_size,)),
    )
