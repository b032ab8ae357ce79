"""An item's pages of the cache, copied a block of pages at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from allmetal_tpu.pallas.shapes import AttentionShape


@dataclass(frozen=True, slots=True, kw_only=True)
class Pages:
    """References of a running kernel.  `seqs`, `positions`, `counts`: of each item its sequence,
    the position of its first query, and its queries.  `table`: rows of `num_pages` blocks.  `kv`
    has two slots, and `arrived` a semaphore for each."""

    shape: AttentionShape
    num_pages: int
    seqs: Any
    positions: Any
    counts: Any
    table: Any
    cache: Any
    kv: Any
    arrived: Any

    def end(self, item: Any) -> Any:
        """Behind the last position that a query of the item sees."""
        return self.positions[item] + self.counts[item]

    def begin(self, item: Any) -> Any:
        """The first position that a query of the item sees."""
        if self.shape.window is None:
            return 0
        return jnp.maximum(self.positions[item] + 1 - self.shape.window, 0)

    def first(self, item: Any) -> Any:
        return self.begin(item) // self.shape.page

    def num_blocks(self, item: Any) -> Any:
        """At least one, which may be without pages: an item then ends as any other."""
        return jnp.maximum(pl.cdiv(self._size(item), self.shape.pages), 1)

    def fetch(self, item: Any, block: Any, slot: Any) -> None:
        self._each(item, block, slot, lambda copy: copy.start())

    def wait(self, item: Any, block: Any, slot: Any) -> None:
        self._each(item, block, slot, lambda copy: copy.wait())

    def _size(self, item: Any) -> Any:
        return jnp.maximum(pl.cdiv(self.end(item), self.shape.page) - self.first(item), 0)

    def _each(self, item: Any, block: Any, slot: Any, do: Callable[[Any], None]) -> None:
        row = self.seqs[item] * self.num_pages + self.first(item) + block * self.shape.pages

        def one(page: Any, _: None) -> None:
            source = jnp.clip(self.table[row + page], 0, self.cache.shape[0] - 1)
            to = self.kv.at[slot, page]
            do(pltpu.make_async_copy(self.cache.at[source], to, self.arrived.at[slot]))

        left = self._size(item) - block * self.shape.pages
        lax.fori_loop(0, jnp.minimum(left, self.shape.pages), one, None)
