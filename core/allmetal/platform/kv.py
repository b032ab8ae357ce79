"""What a layer keeps between steps.  Declared by models, grouped and paged by the cache."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

KVKind: TypeAlias = Literal["full", "sliding_window"]

DTYPE_BYTES = {
    "float32": 4,
    "bfloat16": 2,
    "float16": 2,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "int8": 1,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class KVSpec:
    """One attention layer's cache.  `window` counts the tokens a query sees, itself included."""

    kind: KVKind
    num_kv_heads: int
    head_dim: int
    dtype: str
    window: int | None = None

    def __post_init__(self) -> None:
        assert (self.window is not None) == (self.kind == "sliding_window")

    @property
    def bytes_per_token(self) -> int:
        return 2 * self.num_kv_heads * self.head_dim * DTYPE_BYTES[self.dtype]


@dataclass(frozen=True, slots=True, kw_only=True)
class KVGroup:
    """Layers that share one block table.  `layers` index the model's attention layers."""

    spec: KVSpec
    layers: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheLayout:
    """How the pool is cut: `num_blocks` blocks of `block_size` tokens, one table a group.

    Tensor i of the pool is shared by the i-th layer of every group, since a block belongs to one
    group at a time.  Block 0 is the null block: tables point to it where nothing is kept.
    """

    num_blocks: int
    block_size: int
    groups: tuple[KVGroup, ...]

    @property
    def layers_per_group(self) -> int:
        return max((len(group.layers) for group in self.groups), default=0)

    @property
    def block_bytes(self) -> int:
        if not self.groups:
            return 0
        return self.layers_per_group * self.block_size * self.groups[0].spec.bytes_per_token
