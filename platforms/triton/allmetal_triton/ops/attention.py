"""Paged attention: launches over items that the device schedules from the batch's lengths.

Decode is bound by reading the cache once, 2 * num_kv_heads * head_dim elements a token of
context; prefill by 4 * num_heads * head_dim operations a visible pair of tokens.  Nothing here
depends on the host's copy of the lengths but which kinds of launches there are, so a recorded
step serves every batch of its shape.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol, cast

import torch
import triton

from allmetal.platform.batch import AttentionBatch, DeviceOnly
from allmetal.platform.contract import Support, Supported, Unsupported
from allmetal.platform.specs import AttentionOp, AttentionSpec
from allmetal_triton.jit.attention import attention
from allmetal_triton.jit.schedule import ITEM_WORDS, schedule
from allmetal_triton.ops.attention_tiles import Tiles, few_rows, many_rows, most_few_rows
from allmetal_triton.target import Target, halved, refuse_cache_dtype, refuse_dtype

_LARGEST_HEAD = 512
_ANY_LENGTH = 1 << 30
_PARTS_PER_CORE = 1
"""Programs a core gets beyond one a tile, when long rows are cut into parts.  More only make more
sums to add up: what is short is bandwidth, which all programs share."""
_SLOTS_AT_ONCE = 16
_SEQS_AT_ONCE = 128


@dataclass(frozen=True, slots=True)
class TritonAttention:
    target: Target
    name: str = "triton_attention"

    def supports(self, spec: AttentionSpec) -> Support:
        if reason := refuse_dtype(self.target, spec.dtype):
            return Unsupported(reason)
        if reason := refuse_cache_dtype(self.target, spec.kv_dtype):
            return Unsupported(reason)
        if spec.num_heads % spec.num_kv_heads:
            return Unsupported(
                f"{spec.num_heads} query heads do not divide among {spec.num_kv_heads}"
            )
        if not 16 <= spec.head_dim <= _LARGEST_HEAD:
            return Unsupported(f"head_dim must be 16 to {_LARGEST_HEAD}, not {spec.head_dim}")
        return Supported(rank=10)

    def build(self, spec: AttentionSpec) -> AttentionOp:
        return PagedAttention(spec, self.target)


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """The items of some sequences of a step: `slots` at most, of `tiles`.  `whole`: items are in
    one part, for the other kernel."""

    tiles: Tiles
    slots: int
    items: torch.Tensor
    counters: torch.Tensor
    part_sums: torch.Tensor
    part_values: torch.Tensor
    whole: bool


class WholeItems(Protocol):
    """Another kernel for many rows, without parts; worth it where there are many items."""

    @property
    def tiles(self) -> Tiles: ...
    def takes(self, launch: Launch) -> bool:
        """Whether it is for this launch of items in parts too."""
        ...

    def __call__(
        self,
        launch: Launch,
        q: torch.Tensor,
        cache: torch.Tensor,
        out: torch.Tensor,
        batch: AttentionBatch,
        sinks: torch.Tensor | None,
    ) -> None: ...


class PagedAttention:
    kv_layout = "nhd"

    def __init__(
        self, spec: AttentionSpec, target: Target, whole: WholeItems | None = None
    ) -> None:
        self._spec = spec
        self._target = target
        self._group = spec.num_heads // spec.num_kv_heads
        self._many = many_rows(spec, target)
        self._whole = whole
        self._num_cores = target.num_cores()
        self._spare = max(1, self._num_cores * _PARTS_PER_CORE // spec.num_kv_heads)
        self._key = ("triton.attention", spec)
        self._options = target.launch_options
        narrow = halved(target, spec.kv_dtype)
        self._read_as = None if narrow is None else getattr(torch, narrow)
        self._scale = spec.scale if narrow is None else 2 * spec.scale

    def cache_shape(self, num_blocks: int) -> tuple[int, ...]:
        s = self._spec
        return (num_blocks, 2, s.block_size, s.num_kv_heads, s.head_dim)

    def __call__(
        self,
        q: torch.Tensor,
        cache: torch.Tensor,
        batch: AttentionBatch,
        sinks: torch.Tensor | None = None,
    ) -> torch.Tensor:
        assert (sinks is not None) == self._spec.sinks
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        if not q.shape[0]:
            return out
        if self._key not in batch.memo:
            batch.memo[self._key] = list(self._schedule(q, batch))
        for launch in cast("list[Launch]", batch.memo[self._key]):
            if self._whole is not None and (launch.whole or self._whole.takes(launch)):
                self._whole(launch, q, cache, out, batch, sinks)
            else:
                self._launch(launch, q, cache, out, batch, sinks)
        return out

    # ---- once a step

    def _schedule(self, q: torch.Tensor, batch: AttentionBatch) -> Iterator[Launch]:
        """One launch of small items for all, or one for single tokens and one for the rest."""
        num_seqs, most = batch.seq_lens.shape[0], batch.max_query_len
        if most * self._group <= most_few_rows(self._spec, self._target):
            tiles = few_rows(self._spec, self._target, most * self._group)
            yield self._items(q, batch, tiles, num_seqs, (1, _ANY_LENGTH))
            return
        # What is recorded for any batch of its shape has both kinds.
        if isinstance(batch.host_query_lens, DeviceOnly) or 1 in batch.host_query_lens:
            tiles = few_rows(self._spec, self._target, self._group)
            yield self._items(q, batch, tiles, num_seqs, (1, 1))
        rows = q.shape[0] * self._group
        if self._whole is not None:
            tiles = self._whole.tiles
            if rows // tiles.m * self._spec.num_kv_heads >= self._num_cores:
                most_tiles = num_seqs + rows // tiles.m
                yield self._items(q, batch, tiles, most_tiles, (2, _ANY_LENGTH), whole=True)
                return
        tiles = self._many
        yield self._items(q, batch, tiles, num_seqs + rows // tiles.m, (2, _ANY_LENGTH))

    def _items(
        self,
        q: torch.Tensor,
        batch: AttentionBatch,
        tiles: Tiles,
        most_tiles: int,
        query_lens: tuple[int, int],
        *,
        whole: bool = False,
    ) -> Launch:
        """Those of sequences with `query_lens` new tokens, from the first to the second."""
        spec, num_seqs = self._spec, batch.seq_lens.shape[0]
        slots = most_tiles + (0 if whole else self._spare)
        sums, words = torch.float32, torch.int32
        shape = (0 if whole else slots, spec.num_kv_heads)
        launch = Launch(
            tiles=tiles,
            slots=slots,
            items=torch.empty((slots, ITEM_WORDS), dtype=words, device=q.device),
            counters=torch.empty((slots, spec.num_kv_heads), dtype=words, device=q.device),
            part_sums=torch.empty((*shape, 2, tiles.rows), dtype=sums, device=q.device),
            part_values=torch.empty((*shape, tiles.rows, tiles.d), dtype=sums, device=q.device),
            whole=whole,
        )
        schedule[(triton.cdiv(slots, _SLOTS_AT_ONCE),)](
            batch.seq_lens,
            batch.query_start,
            launch.items,
            launch.counters,
            num_seqs,
            slots,
            self._spare,
            GROUP=self._group,
            KV_HEADS=spec.num_kv_heads,
            BLOCK_M=tiles.m,
            MIN_PART=_ANY_LENGTH if whole else tiles.n,
            WINDOW=spec.window or 0,
            MIN_QUERY=query_lens[0],
            MAX_QUERY=query_lens[1],
            SEQS=_SEQS_AT_ONCE,
            SLOTS=_SLOTS_AT_ONCE,
            HEADS=triton.next_power_of_2(spec.num_kv_heads),
            num_warps=4,
            **self._options,
        )
        return launch

    # ---- once a layer

    def _launch(
        self,
        launch: Launch,
        q: torch.Tensor,
        cache: torch.Tensor,
        out: torch.Tensor,
        batch: AttentionBatch,
        sinks: torch.Tensor | None,
    ) -> None:
        spec, tiles = self._spec, launch.tiles
        block_stride, value_offset, token_stride, head_stride = cache.stride()[:4]
        if self._read_as is not None:
            cache = cache.view(self._read_as)
        attention[(launch.slots * spec.num_kv_heads,)](
            q,
            cache,
            out,
            batch.block_table,
            launch.items,
            launch.counters,
            launch.part_sums,
            launch.part_values,
            sinks,
            self._scale,
            q.stride(0),
            batch.block_table.stride(0),
            block_stride,
            value_offset,
            token_stride,
            head_stride,
            KV_HEADS=spec.num_kv_heads,
            GROUP=self._group,
            DIM=spec.head_dim,
            PAGE=spec.block_size,
            WINDOW=spec.window or 0,
            SOFT_CAP=spec.soft_cap,
            PHASES=tiles.phases,
            PRECISION="ieee",
            M=tiles.m,
            N=tiles.n,
            D=tiles.d,
            ROWS=tiles.rows,
            AT_ONCE=tiles.rows_at_once,
            PARTS=tiles.parts_at_once,
            num_warps=tiles.num_warps,
            num_stages=tiles.num_stages,
            **self._options,
        )
