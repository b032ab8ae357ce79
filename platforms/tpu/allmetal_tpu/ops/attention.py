"""Attention over a paged cache, in tiles of queries of one sequence each.

A decode step has a tile of one query for each sequence.  Otherwise each sequence's queries are
cut into tiles of `TILE`, so a sequence's keys are fetched once for that many of them; how many
tiles there can be follows from the numbers of tokens and sequences alone.  Keys are taken some
pages at a time, with a running maximum (Milakov and Gimelshein, arXiv:1805.02867).

Legend: T tokens, B sequences, N tiles, Q queries of a tile, H query heads, K key-value heads,
G = H / K, D head dim, P pages, S keys of some pages.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from allmetal.platform.batch import AttentionBatch
from allmetal.platform.specs import AttentionOp, AttentionSpec
from allmetal_tpu.ops.kernel import XlaKernel, refuse_dtype

TILE = 16
KEYS_AT_ONCE = 1 << 27
"""Bytes of keys and values, in float32, that are held at once; half of it if one page is more."""
_CACHES = ("float32", "bfloat16", "float16", "float8_e4m3fn", "float8_e5m2")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tiles:
    """N tiles: each one's sequence, its first query's position, and of each of its queries the
    token (any, where there is none).  `places` [T]: where each token stands in N * Q, None if
    tiles are tokens."""

    rows: torch.Tensor | None  # [N], None if tiles are sequences
    first: torch.Tensor  # [N]
    tokens: torch.Tensor | None  # [N, Q]
    places: torch.Tensor | None


@dataclass(frozen=True, slots=True)
class _Attention:
    spec: AttentionSpec

    @property
    def kv_layout(self) -> str:
        return "nhd"

    def cache_shape(self, num_blocks: int) -> tuple[int, ...]:
        s = self.spec
        return (num_blocks, 2, s.block_size, s.num_kv_heads, s.head_dim)

    def __call__(
        self,
        q: torch.Tensor,
        cache: torch.Tensor,
        batch: AttentionBatch,
        sinks: torch.Tensor | None = None,
    ) -> torch.Tensor:
        assert (sinks is not None) == self.spec.sinks
        if not q.shape[0]:
            return torch.empty_like(q)
        tiles = _tiles_of(batch, q.shape[0])
        picked = q[:, None] if tiles.tokens is None else q[tiles.tokens]
        table, lens = batch.block_table, batch.seq_lens
        if tiles.rows is not None:
            table, lens = table[tiles.rows], lens[tiles.rows]
        out = self._attend(picked, cache, table, lens, tiles.first, sinks)
        out = out.flatten(0, 1)
        return out if tiles.places is None else out[tiles.places]

    def _attend(
        self,
        q: torch.Tensor,
        cache: torch.Tensor,
        table: torch.Tensor,
        lens: torch.Tensor,
        first: torch.Tensor,
        sinks: torch.Tensor | None,
    ) -> torch.Tensor:
        """q [N, Q, H, D], table [N, P], lens and first [N] -> [N, Q, H, D]."""
        spec = self.spec
        num_tiles, num_queries = q.shape[:2]
        heads = (spec.num_kv_heads, spec.num_heads // spec.num_kv_heads)
        wide = q.float().view(num_tiles, num_queries, *heads, spec.head_dim)
        at_query = first[:, None] + torch.arange(num_queries, device=q.device)  # [N, Q]
        state = self._empty(wide, sinks)
        table, offset = self._within_window(table, first, num_queries)
        pages = torch.arange(table.shape[1], device=q.device)
        for some in pages.split(self._pages_at_once(num_tiles)):
            start = offset + some[0]
            state = self._more(state, wide, cache, table[:, some], start, lens, at_query)
        _, total, out = state
        out = out / total.clamp_min(torch.finfo(torch.float32).tiny)[..., None]
        return out.permute(0, 3, 1, 2, 4).reshape(q.shape).to(q.dtype)

    def _within_window(
        self, table: torch.Tensor, first: torch.Tensor, num_queries: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The pages of `table` that a window can reach [N, P'], and the number of the first [N]."""
        spec, zeros = self.spec, torch.zeros_like(first)
        if spec.window is None:
            return table, zeros
        reach = (spec.window + num_queries - 2) // spec.block_size + 2
        if reach >= table.shape[1]:
            return table, zeros
        start = (first - spec.window + 1).clamp(min=0) // spec.block_size
        pages = start[:, None] + torch.arange(reach, device=table.device)
        return table.gather(1, pages.clamp(max=table.shape[1] - 1).long()), start

    def _pages_at_once(self, num_tiles: int) -> int:
        s = self.spec
        page = num_tiles * s.block_size * s.num_kv_heads * s.head_dim * 2 * 4
        return max(1, KEYS_AT_ONCE // page)

    def _empty(
        self, q: torch.Tensor, sinks: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Largest score, sum and weighted values so far: [N, K, G, Q], the same, and [.., D]."""
        n, num_queries, k, g, d = q.shape
        out = q.new_zeros(n, k, g, num_queries, d)
        if sinks is None:
            # Not -inf, so that what has seen nothing yet has no difference of infinities.
            best = torch.full_like(out[..., 0], torch.finfo(torch.float32).min)
            return best, torch.zeros_like(best), out
        best = sinks.float().view(1, k, g, 1).expand(n, k, g, num_queries)
        return best, torch.ones_like(best), out

    def _more(
        self,
        state: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
        q: torch.Tensor,
        cache: torch.Tensor,
        table: torch.Tensor,
        start: torch.Tensor,
        lens: torch.Tensor,
        at_query: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """`state` with the keys of `table` [N, P], whose first page is a sequence's `start`-th."""
        spec, (best, total, out) = self.spec, state
        at_key = start[:, None] * spec.block_size + torch.arange(
            table.shape[1] * spec.block_size, device=q.device
        )  # [N, S]
        written = at_key < lens[:, None]
        held = torch.where(
            written[:, :: spec.block_size], table, 0
        )  # beyond, a table holds anything
        k, v = _pages(cache, held).float().unbind(1)  # [N, S, K, D]
        seen = written[:, None] & (at_key[:, None] <= at_query[..., None])  # [N, Q, S]
        if spec.window is not None:
            seen &= at_key[:, None] > at_query[..., None] - spec.window
        scores = torch.einsum("nqkgd,nskd->nkgqs", q, k) * spec.scale
        if spec.soft_cap is not None:
            scores = spec.soft_cap * torch.tanh(scores / spec.soft_cap)
        scores = scores.masked_fill(~seen[:, None, None], float("-inf"))
        # What nobody wrote may be no number, and no weight of 0 makes one of it.
        v = torch.where(written[..., None, None], v, 0.0)
        higher = torch.maximum(best, scores.amax(-1))
        weights = torch.exp(scores - higher[..., None])
        keep = torch.exp(best - higher)
        total = total * keep + weights.sum(-1)
        out = out * keep[..., None] + torch.einsum("nkgqs,nskd->nkgqd", weights, v)
        return higher, total, out


def _pages(cache: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """[N, 2, S, K, D] of cache [blocks, 2, block_size, K, D]."""
    raw = cache.view(torch.uint8) if cache.dtype.itemsize == 1 else cache
    found = raw[table.long()].view(cache.dtype)  # [N, P, 2, block_size, K, D]
    return found.transpose(1, 2).flatten(2, 3)


def _tiles_of(batch: AttentionBatch, num_tokens: int) -> _Tiles:
    num_seqs = batch.seq_lens.shape[0]
    if batch.max_query_len == 1 and num_seqs == num_tokens:
        return _Tiles(rows=None, first=batch.seq_lens - 1, tokens=None, places=None)
    key = ("allmetal_tpu.tiles", TILE)
    made = batch.memo.get(key)
    if not isinstance(made, _Tiles):
        made = batch.memo[key] = _cut(batch, num_tokens)
    return made


def _cut(batch: AttentionBatch, num_tokens: int) -> _Tiles:
    starts, lens = batch.query_start.long(), batch.seq_lens.long()
    device, num_seqs = starts.device, lens.shape[0]
    counts = (starts.diff() + TILE - 1) // TILE  # of each sequence's tiles
    before = torch.arange(num_seqs, device=device)
    ends = torch.where(before[:, None] >= before, counts, 0).sum(-1)
    num_tiles = min(num_tokens, num_tokens // TILE + num_seqs)
    tiles = torch.arange(num_tiles, device=device)
    rows = torch.searchsorted(ends, tiles, right=True).clamp(max=num_seqs - 1)
    within = (tiles - (ends - counts)[rows]) * TILE  # the first query's place in its sequence
    tokens = (starts[rows] + within)[:, None] + torch.arange(TILE, device=device)
    token = torch.arange(num_tokens, device=device)
    row = torch.searchsorted(starts[1:], token, right=True).clamp(max=num_seqs - 1)
    place = token - starts[row]
    return _Tiles(
        rows=rows,
        first=(lens - starts.diff())[rows] + within,
        tokens=tokens.clamp(max=num_tokens - 1),
        places=((ends - counts)[row] + place // TILE) * TILE + place % TILE,
    )


def _refuse(spec: AttentionSpec) -> str | None:
    if spec.num_heads % spec.num_kv_heads:
        return f"{spec.num_heads} query heads do not divide among {spec.num_kv_heads} of the cache"
    if spec.kv_dtype == "int8":
        return "keys and values in int8 need scales, and the spec carries none"
    if spec.kv_dtype not in _CACHES:
        return f"kv_dtype must be one of {', '.join(_CACHES)}, not {spec.kv_dtype}"
    return refuse_dtype(spec.dtype)


KERNEL: XlaKernel[AttentionSpec, AttentionOp] = XlaKernel("xla_attention", _refuse, _Attention)
