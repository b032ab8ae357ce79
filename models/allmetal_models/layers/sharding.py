"""How the outputs of a projection are shared among ranks, and where they lie in the checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from allmetal.errors import ConfigError
from allmetal_models.config import DecoderConfig
from allmetal_models.context import BuildContext
from allmetal_models.layers.formats import Rows
from allmetal_models.layers.scope import Scope


@dataclass(frozen=True, slots=True)
class Shard:
    """Of a projection with `total` outputs this rank keeps `length` from `start` on."""

    name: str
    total: int
    start: int
    length: int


@dataclass(frozen=True, slots=True)
class HeadShare:
    """This rank's heads.  With more ranks than key-value heads, ranks hold the same one."""

    num_heads: int
    num_kv_heads: int
    shards: tuple[Shard, Shard, Shard]


def share_heads(ctx: BuildContext, config: DecoderConfig) -> HeadShare:
    first, num_heads = ctx.share(config.num_heads, "query heads")
    if config.num_kv_heads >= ctx.tp_size:
        first_kv, num_kv_heads = ctx.share(config.num_kv_heads, "key-value heads")
    elif ctx.tp_size % config.num_kv_heads == 0:
        first_kv, num_kv_heads = ctx.tp_rank * config.num_kv_heads // ctx.tp_size, 1
    else:
        raise ConfigError(
            f"{ctx.tp_size} ranks cannot share {config.num_kv_heads} key-value heads equally"
        )
    dim = config.head_dim
    q = Shard("q_proj", config.num_heads * dim, first * dim, num_heads * dim)
    k, v = (
        Shard(name, config.num_kv_heads * dim, first_kv * dim, num_kv_heads * dim)
        for name in ("k_proj", "v_proj")
    )
    return HeadShare(num_heads, num_kv_heads, (q, k, v))


def share_evenly(ctx: BuildContext, names: Sequence[str], total: int) -> tuple[Shard, ...]:
    """Projections of `total` outputs each."""
    return tuple(Shard(name, total, *ctx.share(total, f"outputs of {name}")) for name in names)


def separate_rows(at: Scope, shards: Sequence[Shard]) -> tuple[Rows, ...]:
    """The checkpoint has one tensor a projection, named after it."""
    return tuple(Rows(at=at / s.name, total=s.total, ranges=((s.start, s.length),)) for s in shards)


def fused_rows(at: Scope, shards: Sequence[Shard]) -> tuple[Rows, ...]:
    """The checkpoint has all projections in the tensor at `at`, one below the other."""
    ranges: list[tuple[int, int]] = []
    begin = 0
    for s in shards:
        start = begin + s.start
        if ranges and sum(ranges[-1]) == start:
            ranges[-1] = (ranges[-1][0], ranges[-1][1] + s.length)
        else:
            ranges.append((start, s.length))
        begin += s.total
    return (Rows(at=at, total=begin, ranges=tuple(ranges)),)
