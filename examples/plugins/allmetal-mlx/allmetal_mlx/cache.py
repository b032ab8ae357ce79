"""Keys and values in MLX, paged as the core lays them out, and a step's view of them.

MLX's arrays do not change: a write makes a new one, which takes over the memory of the old when
nobody else holds that.

Legend: T tokens, B sequences, S keys, K key-value heads, D head dim.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx

from allmetal.platform.batch import AttentionBatch
from allmetal_mlx import ops
from allmetal_mlx.bridge import to_mlx
from allmetal_mlx.kernels import visible


class Pool:
    """Array i is shared by the i-th layer of every group, since a block belongs to one group at
    a time; a layer reads what it wrote in the same step or before."""

    def __init__(
        self, groups: Sequence[int], num_slots: int, row: tuple[int, int], dtype: mx.Dtype
    ):
        """`groups`: each layer's KV group; `row` (K, D) of one token."""
        seen: dict[int, int] = {}
        self._places = []
        for group in groups:
            self._places.append(seen.get(group, 0))
            seen[group] = self._places[-1] + 1
        self._arrays = [mx.zeros((num_slots, 2, *row), dtype) for _ in range(max(seen.values()))]

    def write(self, layer: int, slots: mx.array, k: mx.array, v: mx.array) -> None:
        """k, v [T, K, D] to slots [T]."""
        self._arrays[self._places[layer]][slots] = mx.stack([k, v], axis=1)

    def read(self, layer: int, slots: mx.array) -> tuple[mx.array, mx.array]:
        """slots [.., S] -> k, v [.., S, K, D]."""
        kv = self._arrays[self._places[layer]][slots]
        return kv[..., 0, :, :], kv[..., 1, :, :]

    def evaluate(self) -> None:
        """Write what is still only planned."""
        mx.eval(self._arrays)


@dataclass(frozen=True, slots=True)
class Part:
    """Some of a step's queries, and what they may look at.

    `rows` of T; `queries` [B, Q] their positions; `slots` [B, S] of the keys at `keys` [S].
    """

    rows: slice
    queries: mx.array
    keys: mx.array
    slots: mx.array
    window: int | None

    def attend(self, q: mx.array, k: mx.array, v: mx.array, scale: float) -> mx.array:
        """q [T, H, D] of the rows -> the same shape."""
        batch, length = self.queries.shape
        seen = mx.stack([visible(positions, self.keys, self.window) for positions in self.queries])
        return ops.attend(q.reshape(batch, length, *q.shape[1:]), k, v, seen, scale).reshape(
            q.shape
        )


@dataclass(frozen=True, slots=True)
class GroupStep:
    """One KV group's view of a step."""

    slot_mapping: mx.array  # [T]
    parts: tuple[Part, ...]


def group_step(batch: AttentionBatch, block_size: int, window: int | None) -> GroupStep:
    """Decoding sequences go together; where some are prefilled, each goes alone."""
    table = to_mlx(batch.block_table)
    lens = list(batch.host_seq_lens)
    if batch.max_query_len == 1:
        parts = [_decode(table, lens, block_size, window)]
    else:
        parts, start = [], 0
        for row, (count, length) in enumerate(zip(batch.host_query_lens, lens, strict=True)):
            rows = slice(start, start + count)
            parts.append(_alone(table[row], rows, length, block_size, window))
            start += count
    return GroupStep(to_mlx(batch.slot_mapping), tuple(parts))


def _decode(table: mx.array, lens: list[int], block_size: int, window: int | None) -> Part:
    lengths = mx.array(lens)
    keys = mx.arange(table.shape[1] * block_size)
    slots = (table[:, :, None] * block_size + mx.arange(block_size)).reshape(len(lens), -1)
    slots = mx.where(keys < lengths[:, None], slots, 0)  # behind the end it can be anything
    return Part(slice(0, len(lens)), (lengths - 1)[:, None], keys, slots, window)


def _alone(table: mx.array, rows: slice, length: int, block_size: int, window: int | None) -> Part:
    position = length - (rows.stop - rows.start)
    first = 0 if window is None else max(0, position + 1 - window)
    keys = mx.arange(first, length)
    slots = table[keys // block_size] * block_size + keys % block_size
    return Part(rows, mx.arange(position, length)[None], keys, slots[None], window)
