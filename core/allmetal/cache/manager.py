"""Each sequence's block tables: reuse, growth, windows that move on, and release."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from allmetal.cache.blocks import NULL_BLOCK, BlockPool
from allmetal.cache.groups import blocks_by_group
from allmetal.cache.prefix import extend_hashes, root_hash
from allmetal.platform.kv import CacheLayout

NewBlocks: TypeAlias = list[tuple[int, int, list[int]]]
"""(group, index in the table, block ids from there on)."""


@dataclass(slots=True)
class Tables:
    """One sequence's blocks.  `capacity` tokens fit the blocks it holds."""

    groups: list[list[int]]
    root: bytes
    capacity: int = 0
    hashes: list[bytes] = field(default_factory=list)
    num_named: int = 0  # leading blocks whose content may be found by others
    first_kept: list[int] = field(default_factory=list)  # a group's blocks before it are gone


@dataclass(slots=True)
class PrefixStats:
    """Tokens looked up and tokens found, since the start."""

    queries: int = 0
    hits: int = 0


class KVCacheManager:
    """Hands out blocks of a layout.  Speaks of tables and tokens, never of requests."""

    def __init__(self, layout: CacheLayout, *, prefix_caching: bool) -> None:
        self.layout = layout
        self.block_size = layout.block_size
        self.pool = BlockPool(layout.num_blocks)
        self.prefix_caching = prefix_caching
        self.stats = PrefixStats()
        self._windows = [group.spec.window for group in layout.groups]
        self._tags = [index.to_bytes(2, "little") for index in range(len(layout.groups))]
        self._sliding = any(window is not None for window in self._windows)

    def open(self, salt: str) -> Tables:
        num_groups = len(self._windows)
        return Tables(
            groups=[[] for _ in range(num_groups)],
            root=root_hash(salt),
            first_kept=[0] * num_groups,
        )

    # ---- reuse -----------------------------------------------------------------------------

    def reuse(self, tables: Tables, token_ids: list[int], num_tokens: int) -> int:
        """Fill empty tables with blocks that hold a prefix already; returns its tokens.

        At least one of the `num_tokens` is left to compute, since the next token comes from it.
        """
        if not self.prefix_caching:
            return 0
        extend_hashes(tables.hashes, tables.root, token_ids, self.block_size, num_tokens)
        num_blocks = self._longest_hit(tables.hashes, (num_tokens - 1) // self.block_size)
        for group, table in enumerate(tables.groups):
            first = self._first_needed(group, num_blocks * self.block_size)
            found = [self._find(group, h) for h in tables.hashes[first:num_blocks]]
            blocks = [block for block in found if block is not None]
            assert len(blocks) == num_blocks - first
            self.pool.share(blocks)
            table[:] = [NULL_BLOCK] * first + blocks
            tables.first_kept[group] = first
        tables.num_named = num_blocks
        tables.capacity = num_blocks * self.block_size
        return tables.capacity

    def count_lookup(self, num_tokens: int, num_hit: int) -> None:
        self.stats.queries += num_tokens
        self.stats.hits += num_hit

    def _find(self, group: int, content: bytes) -> int | None:
        return self.pool.find(content + self._tags[group])

    def _longest_hit(self, hashes: list[bytes], limit: int) -> int:
        """Blocks of the longest prefix that every group can serve: all of it in a full group, the
        last window of it in a sliding one."""
        length = limit
        for group, window in enumerate(self._windows):
            if window is None:
                length = next(
                    (i for i in range(length) if self._find(group, hashes[i]) is None), length
                )
        settled = False
        while length and not settled:
            settled = True
            for group, window in enumerate(self._windows):
                if window is None:
                    continue
                first = self._first_needed(group, length * self.block_size)
                missing = [i for i in range(first, length) if self._find(group, hashes[i]) is None]
                if missing:
                    length, settled = missing[-1], False
                    break
        return length

    def _first_needed(self, group: int, num_computed: int) -> int:
        """The first block that the token at position `num_computed` still sees."""
        window = self._windows[group]
        if window is None:
            return 0
        return max(0, num_computed - window + 1) // self.block_size

    # ---- growth ----------------------------------------------------------------------------

    def missing_blocks(self, tables: Tables, num_tokens: int) -> int:
        """Blocks to take before `num_tokens` fit."""
        needed = -(-num_tokens // self.block_size)
        return sum(max(0, needed - len(table)) for table in tables.groups)

    def room_for(self, tables: Tables, num_tokens: int, chunk: int) -> int:
        """Blocks to take until all `num_tokens` are computed, `chunk` at a time at most."""
        held = blocks_by_group(self.layout, num_tokens, chunk)
        return sum(
            max(0, most - (len(table) - first))
            for most, table, first in zip(held, tables.groups, tables.first_kept, strict=True)
        )

    def grow(self, tables: Tables, num_tokens: int, num_computed: int) -> NewBlocks | None:
        """Make room for `num_tokens`, the first `num_computed` of which are in the cache.

        None if the pool cannot: then nothing has changed but that blocks behind a window are free.
        """
        if self._sliding:
            self._drop_behind_window(tables, num_computed)
        if self.missing_blocks(tables, num_tokens) > self.pool.num_free:
            return None
        needed = -(-num_tokens // self.block_size)
        grown: NewBlocks = []
        for group, table in enumerate(tables.groups):
            if needed > len(table):
                fresh = self.pool.take(needed - len(table))
                grown.append((group, len(table), fresh))
                table += fresh
        tables.capacity = needed * self.block_size
        return grown

    def _drop_behind_window(self, tables: Tables, num_computed: int) -> None:
        for group, table in enumerate(tables.groups):
            first = min(self._first_needed(group, num_computed), len(table))
            kept = tables.first_kept[group]
            if first > kept:
                self.pool.release(reversed(table[kept:first]))
                table[kept:first] = [NULL_BLOCK] * (first - kept)
                tables.first_kept[group] = first

    def name_full_blocks(self, tables: Tables, token_ids: list[int], num_tokens: int) -> None:
        """The first `num_tokens` are in the cache or on their way: let others find their blocks."""
        num_full = num_tokens // self.block_size
        if not self.prefix_caching or num_full <= tables.num_named:
            return
        extend_hashes(tables.hashes, tables.root, token_ids, self.block_size, num_tokens)
        for index in range(tables.num_named, num_full):
            for group, table in enumerate(tables.groups):
                if table[index] != NULL_BLOCK:
                    self.pool.name(table[index], tables.hashes[index] + self._tags[group])
        tables.num_named = num_full

    def release(self, tables: Tables) -> None:
        """Give all blocks back; the content stays findable until a block is taken anew."""
        for group, table in enumerate(tables.groups):
            self.pool.release(reversed(table[tables.first_kept[group] :]))
            table.clear()
            tables.first_kept[group] = 0
        tables.capacity = 0
        tables.num_named = 0
