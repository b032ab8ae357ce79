"""Paged attention with torch's operators: pages are gathered a cache-sized chunk at a time, and
the softmax runs on from chunk to chunk.

Source of the running softmax: Milakov and Gimelshein, arXiv:1805.02867.

Legend: T tokens, R rows (sequences), Q queries a row, H query heads, K key-value heads,
G = H / K, D head dim, P pages, S = P * block_size keys.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

import torch

from allmetal.platform.batch import AttentionBatch
from allmetal.platform.contract import Support, Supported, Unsupported
from allmetal.platform.specs import AttentionOp, AttentionSpec

_CHUNK_BYTES = 8 << 20
"""Keys and values in float32 taken at once, so that they are read from a cache and not memory."""

_QUERIES_AT_ONCE = 256
_HIDDEN = -1e30
"""A masked score: finite, so that a chunk in which a query sees nothing yields no NaN."""


class TorchPagedAttention:
    name = "torch_paged"

    def supports(self, spec: AttentionSpec) -> Support:
        if spec.kv_dtype != spec.dtype:
            return Unsupported(f"keeps keys and values in {spec.dtype}, not {spec.kv_dtype}")
        return Supported(rank=20)

    def build(self, spec: AttentionSpec) -> AttentionOp:
        return _Op(spec)


@dataclass(slots=True, kw_only=True)
class _Chunk:
    """Pages [n, P] of the first n rows, and which keys are hidden from a query, [n, 1, Q, S].

    `unwritten` [n, 1, S, 1]: keys beyond the sequence, whose memory may hold anything, even NaN.
    """

    pages: torch.Tensor
    hidden: torch.Tensor
    unwritten: torch.Tensor | None


@dataclass(slots=True, kw_only=True)
class _Rows:
    """Rows of Q queries each, longest history first; `tokens` [R * Q] are their places in T."""

    tokens: torch.Tensor
    num_rows: int
    num_queries: int
    chunks: list[_Chunk]


class _Op:
    kv_layout = "hnd"

    def __init__(self, spec: AttentionSpec) -> None:
        self._spec = spec

    def cache_shape(self, num_blocks: int) -> tuple[int, ...]:
        s = self._spec
        return (num_blocks, 2, s.num_kv_heads, s.block_size, s.head_dim)

    def __call__(
        self,
        q: torch.Tensor,
        cache: torch.Tensor,
        batch: AttentionBatch,
        sinks: torch.Tensor | None = None,
    ) -> torch.Tensor:
        s = self._spec
        key = ("cpu.torch_paged", s.block_size, s.window)
        if key not in batch.memo:
            batch.memo[key] = list(self._schedule(batch))
        out = torch.empty_like(q)
        for rows in cast("list[_Rows]", batch.memo[key]):
            out[rows.tokens] = self._attend(q[rows.tokens], cache, rows, sinks)
        return out

    # ---- what to do, once a step

    def _schedule(self, batch: AttentionBatch) -> Iterator[_Rows]:
        """All rows of one query together; longer rows one by one, some queries at a time."""
        starts = batch.query_start.tolist()
        lens = list(zip(batch.host_query_lens, batch.host_seq_lens, strict=True))
        decodes = [i for i, (n, _) in enumerate(lens) if n == 1]
        if decodes:
            decodes.sort(key=lambda i: -self._num_pages(lens[i][1], 1))
            yield self._rows(
                torch.tensor([starts[i] for i in decodes]),
                batch.block_table[decodes],
                [lens[i][1] for i in decodes],
                1,
            )
        for i, (num_queries, seq_len) in enumerate(lens):
            for done in range(0, num_queries if num_queries > 1 else 0, _QUERIES_AT_ONCE):
                size = min(_QUERIES_AT_ONCE, num_queries - done)
                first = starts[i] + done
                yield self._rows(
                    torch.arange(first, first + size),
                    batch.block_table[i : i + 1],
                    [seq_len - num_queries + done + size],
                    size,
                )

    def _first_page(self, seq_len: int, num_queries: int) -> int:
        window = self._spec.window
        if window is None:
            return 0
        return max(0, seq_len - num_queries - window + 1) // self._spec.block_size

    def _num_pages(self, seq_len: int, num_queries: int) -> int:
        return -(-seq_len // self._spec.block_size) - self._first_page(seq_len, num_queries)

    def _rows(
        self, tokens: torch.Tensor, table: torch.Tensor, seq_lens: list[int], num_queries: int
    ) -> _Rows:
        """`seq_lens` end with each row's last query; `table` [R, P]."""
        s = self._spec
        first = [self._first_page(n, num_queries) for n in seq_lens]
        count = [self._num_pages(n, num_queries) for n in seq_lens]
        page_bytes = 2 * 4 * s.num_kv_heads * s.block_size * s.head_dim * len(seq_lens)
        step = max(1, _CHUNK_BYTES // page_bytes)
        chunks = []
        for at in range(0, count[0], step):
            n = sum(c > at for c in count)
            width = min(step, count[0] - at)
            index = torch.tensor(first[:n])[:, None] + at + torch.arange(width)  # [n, P]
            valid = index.clamp(max=table.shape[1] - 1)
            pages = table[:n].gather(1, valid.to(table.device)).long()
            chunks.append(self._chunk(pages, index, torch.tensor(seq_lens[:n]), num_queries))
        return _Rows(tokens=tokens, num_rows=len(seq_lens), num_queries=num_queries, chunks=chunks)

    def _chunk(
        self, pages: torch.Tensor, index: torch.Tensor, seq_lens: torch.Tensor, num_queries: int
    ) -> _Chunk:
        """`index` [n, P] are the pages' places in their sequences."""
        size, window = self._spec.block_size, self._spec.window
        at_key = (index[:, :, None] * size + torch.arange(size)).view(len(index), 1, 1, -1)
        at_query = seq_lens[:, None] - num_queries + torch.arange(num_queries)
        at_query = at_query[:, None, :, None]
        hidden = at_key > at_query
        if window is not None:
            hidden |= at_key <= at_query - window
        unwritten = (at_key >= seq_lens[:, None, None, None]).transpose(2, 3)
        return _Chunk(
            pages=pages, hidden=hidden, unwritten=unwritten if bool(unwritten.any()) else None
        )

    # ---- doing it

    def _attend(
        self, q: torch.Tensor, cache: torch.Tensor, rows: _Rows, sinks: torch.Tensor | None
    ) -> torch.Tensor:
        """q [R * Q, H, D] -> the same shape."""
        s = self._spec
        shape = (rows.num_rows, rows.num_queries, s.num_kv_heads, -1, s.head_dim)
        q_RKGQD = (q.float() * s.scale).view(shape).permute(0, 2, 3, 1, 4)
        top = torch.full((*q_RKGQD.shape[:-1], 1), _HIDDEN)
        total = torch.zeros_like(top)
        out = torch.zeros(q_RKGQD.shape)
        for chunk in rows.chunks:
            n = len(chunk.pages)
            keys, values = self._gather(cache, chunk.pages)
            if chunk.unwritten is not None:
                values.masked_fill_(chunk.unwritten, 0.0)
            self._accumulate(q_RKGQD[:n], keys, values, chunk.hidden, top[:n], total[:n], out[:n])
        if sinks is not None:
            sink = sinks.float().view(1, s.num_kv_heads, -1, 1, 1)
            new = torch.maximum(top, sink)
            out *= torch.exp(top - new)
            total = total * torch.exp(top - new) + torch.exp(sink - new)
        out /= total
        return out.permute(0, 3, 1, 2, 4).reshape(q.shape).to(q.dtype)

    def _gather(self, cache: torch.Tensor, pages: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Keys and values [n, K, S, D] float32 of pages [n, P]."""
        n, num_pages = pages.shape
        held = cache.index_select(0, pages.flatten()).unflatten(0, (n, num_pages))
        return tuple(
            held[:, :, i]
            .transpose(1, 2)
            .to(torch.float32, memory_format=torch.contiguous_format)
            .flatten(2, 3)
            for i in (0, 1)
        )

    def _accumulate(
        self,
        q: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        hidden: torch.Tensor,
        top: torch.Tensor,
        total: torch.Tensor,
        out: torch.Tensor,
    ) -> None:
        """One more chunk: q [n, K, G, Q, D]; top, total and out are brought up to date."""
        groups, num_queries = q.shape[2:4]
        scores = (q.flatten(2, 3) @ keys.transpose(-1, -2)).unflatten(2, (groups, num_queries))
        if self._spec.soft_cap is not None:
            scores.div_(self._spec.soft_cap).tanh_().mul_(self._spec.soft_cap)
        scores.masked_fill_(hidden[:, :, None], _HIDDEN)
        new = torch.maximum(top, scores.amax(-1, keepdim=True))
        weights = scores.sub_(new).exp_()
        old = torch.exp(top - new)
        total.mul_(old).add_(weights.sum(-1, keepdim=True))
        out.mul_(old).add_((weights.flatten(2, 3) @ values).unflatten(2, (groups, num_queries)))
        top.copy_(new)
