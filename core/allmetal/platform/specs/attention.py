"""Attention over a paged cache, and what comes before it.

Legend: T tokens, H query heads, K key-value heads, D head dim.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, Protocol, TypeAlias

if TYPE_CHECKING:
    import torch

    from allmetal.platform.batch import AttentionBatch

KVLayout: TypeAlias = str
"""Axes of a layer's cache.  "nhd" is [blocks, 2, block_size, K, D], "hnd" is
[blocks, 2, K, block_size, D], and "split_nhd", for operators that want keys and values each in one
piece, is [2, blocks, block_size, K, D]; the reference writes all three.  A kernel may name a layout
of its own when its platform also brings an `attention_input` for it.  Its axis 0 is the block."""


def block_axis(layout: KVLayout) -> int:
    """Which axis of a cache counts its blocks."""
    return 1 if layout == "split_nhd" else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionSpec:
    """softmax(soft_cap(scale * q k^T) + causal and window mask) v, per sequence, over the cache.

    `window`: a query at position p sees positions p - window + 1 .. p.
    `soft_cap`: c * tanh(x / c) on the scaled scores.  `sinks`: one learned logit a head joins
    the denominator.
    """

    family: ClassVar[str] = "attention"
    dtype: str
    kv_dtype: str
    num_heads: int
    num_kv_heads: int
    head_dim: int
    block_size: int
    scale: float
    window: int | None = None
    soft_cap: float | None = None
    sinks: bool = False


class AttentionOp(Protocol):
    """q [T, H, D] -> out [T, H, D]; keys and values of all T tokens are already in `cache`.

    Slots no query may see (past seq_lens, before the window, other blocks) can hold anything,
    NaN included, and never reach the output.
    """

    @property
    def kv_layout(self) -> KVLayout: ...
    def cache_shape(self, num_blocks: int) -> tuple[int, ...]: ...
    def __call__(
        self,
        q: torch.Tensor,
        cache: torch.Tensor,
        batch: AttentionBatch,
        sinks: torch.Tensor | None = None,
    ) -> torch.Tensor: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionInputSpec:
    """From the fused projection to attention's input.

    `qk_norm`: RMS norm of q and k before rotation, per head ("head", weights [D]) or over all
    heads ("full", weights [H * D] and [K * D]).  The norm's weight is `weight + norm_offset`.
    `rotary_dim`: leading channels of each head that rotate, 0 for none; `interleaved` pairs
    channels (0, 1), (2, 3) .. instead of (i, i + rotary_dim / 2).  A narrower `kv_dtype` is a
    saturating cast without scales.
    """

    family: ClassVar[str] = "attention_input"
    dtype: str
    kv_dtype: str
    num_heads: int
    num_kv_heads: int
    head_dim: int
    block_size: int
    kv_layout: KVLayout
    rotary_dim: int
    interleaved: bool = False
    qk_norm: Literal["none", "head", "full"] = "none"
    norm_eps: float = 1e-6
    norm_offset: float = 0.0


class AttentionInputOp(Protocol):
    """qkv [T, (H + 2 K) * D] -> q [T, H, D] contiguous; keys and values go to `cache`.

    `cos_sin` is [max_positions, rotary_dim] float32: cosines then sines, each rotary_dim / 2.
    """

    def __call__(
        self,
        qkv: torch.Tensor,
        positions: torch.Tensor,
        cos_sin: torch.Tensor | None,
        cache: torch.Tensor,
        slot_mapping: torch.Tensor,
        q_weight: torch.Tensor | None = None,
        k_weight: torch.Tensor | None = None,
    ) -> torch.Tensor: ...
