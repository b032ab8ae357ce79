"""Attention over a paged cache by `npu_fused_infer_attention_score`.

The operator takes lengths on the host, a paged cache whose keys lie apart from the values, in
blocks of a multiple of 128 tokens, and 16-bit floating point.  What it is given depends on the
batch, since it takes different things together:

- one query a sequence: all sequences in one call, layout BSH.  It takes no window then, so a
  window's blocks are picked out of the table, and a mask hides what comes before it in the first;
- more, with heads of 128 channels: all sequences in one call, layout TND;
- more, with other heads: those with one query in one call, each of the others in its own.

Source: the operator's documentation in torch_npu 2.13.0.

Legend: T tokens, B sequences, P blocks a sequence, H query heads, K key-value heads, D head dim.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from typing import Any

import torch

from allmetal.errors import PlatformError
from allmetal.platform.batch import AttentionBatch
from allmetal.platform.contract import Support, Supported, Unsupported
from allmetal.platform.specs import AttentionOp, AttentionSpec
from allmetal_ascend.chips import Chip
from allmetal_ascend.ops.attention_input import LAYOUT
from allmetal_ascend.ops.dtypes import HALF, refuse_dtype
from allmetal_ascend.recorded import fused_attention

_PAGE, _LARGEST_BLOCK = 128, 512
_RAGGED_HEAD_DIM = 128
"""That of the only heads whose sequences may lie one behind the other, in layout TND."""
_MASK = 2048
"""Rows of the triangle that the operator wants for any length of causal attention."""
_CAUSAL, _BAND = 3, 4
_MOST_ELEMENTS = 2**31 - 1


@dataclass(frozen=True, slots=True)
class NpuAttention:
    chip: Chip
    name: str = "npu_attention"
    dtypes: Sequence[str] = HALF

    def supports(self, spec: AttentionSpec) -> Support:
        refused = refuse_dtype(self.chip, spec.dtype, self.dtypes) or self._refuse(spec)
        return Supported() if refused is None else Unsupported(refused)

    def _refuse(self, spec: AttentionSpec) -> str | None:
        if not self.chip.fused_attention:
            return f"{self.chip.arch} has no npu_fused_infer_attention_score"
        if spec.kv_dtype != spec.dtype:
            return f"kv_dtype must be {spec.dtype} too, not {spec.kv_dtype}"
        if spec.soft_cap is not None:
            return "the operator has no soft_cap"
        if spec.sinks:
            return "the operator takes no sinks over a paged cache"
        if spec.head_dim % 16 or spec.head_dim > 512:
            return f"head_dim must be a multiple of 16 and at most 512, not {spec.head_dim}"
        if spec.block_size % _PAGE or spec.block_size > _LARGEST_BLOCK:
            return f"block_size must be a multiple of 128 and at most 512, not {spec.block_size}"
        return _refuse_heads(spec)

    def build(self, spec: AttentionSpec) -> AttentionOp:
        return _PagedAttention(spec)


def _refuse_heads(spec: AttentionSpec) -> str | None:
    heads, groups = spec.num_heads, spec.num_kv_heads
    if heads % groups or heads // groups > 64:
        return f"{heads} query heads must be 1 to 64 times the {groups} of the cache"
    if heads > 256 or heads * spec.head_dim > 65_535:
        return "there must be at most 256 query heads, of at most 65535 channels together"
    return None


@dataclass(frozen=True, slots=True)
class _PagedAttention:
    spec: AttentionSpec
    kv_layout: str = LAYOUT

    def cache_shape(self, num_blocks: int) -> tuple[int, ...]:
        s = self.spec
        if num_blocks * s.block_size * s.num_kv_heads * s.head_dim > _MOST_ELEMENTS:
            raise PlatformError(
                f"a layer's keys in {num_blocks} blocks are more than the attention operator "
                "can address: 2 ** 31 elements",
                hint="set a smaller --kv-cache-memory",
            )
        return (2, num_blocks, s.block_size, s.num_kv_heads, s.head_dim)

    def __call__(
        self,
        q: torch.Tensor,
        cache: torch.Tensor,
        batch: AttentionBatch,
        sinks: torch.Tensor | None = None,
    ) -> torch.Tensor:
        assert sinks is None
        if not q.shape[0]:
            return torch.empty_like(q)
        q, caches = q.contiguous(), cache.flatten(3)  # [2, blocks, block_size, K * D]
        if batch.max_query_len == 1 and q.shape[0] == batch.seq_lens.shape[0]:
            return self._one_each(q, caches, batch)
        if self.spec.head_dim == _RAGGED_HEAD_DIM:
            return self._ragged(q, caches, batch)
        return self._apart(q, caches, batch)

    def _one_each(
        self, q: torch.Tensor, caches: torch.Tensor, batch: AttentionBatch
    ) -> torch.Tensor:
        """One query of every sequence."""
        view = _seen(batch, self.spec)
        out = fused_attention(
            q.flatten(1)[:, None],
            caches[0],
            caches[1],
            batch=batch,
            lengths=view.lengths,
            options={
                **self._options("BSH"),
                "block_table": view.block_table,
                "atten_mask": view.mask,
            },
        )
        return out.view_as(q)

    def _ragged(self, q: torch.Tensor, caches: torch.Tensor, batch: AttentionBatch) -> torch.Tensor:
        out: torch.Tensor = torch.ops.npu.npu_fused_infer_attention_score(
            q,
            caches[0],
            caches[1],
            **self._options("TND"),
            **self._causal(q.device),
            block_table=batch.block_table.contiguous(),
            actual_seq_lengths=list(accumulate(batch.host_query_lens)),
            actual_seq_lengths_kv=list(batch.host_seq_lens),
        )[0]
        return out

    def _apart(self, q: torch.Tensor, caches: torch.Tensor, batch: AttentionBatch) -> torch.Tensor:
        counts = list(batch.host_query_lens)
        starts = list(accumulate(counts, initial=0))
        out = torch.empty_like(q)
        alone = [row for row, count in enumerate(counts) if count == 1]
        if alone:
            rows, places = _indices(alone, [starts[row] for row in alone], q.device)
            few = _only(batch, rows, alone)
            out.index_copy_(0, places, self._one_each(q.index_select(0, places), caches, few))
        for row, count in enumerate(counts):
            if count > 1:
                here = slice(starts[row], starts[row] + count)
                out[here] = self._one(q[here], caches, batch, row)
        return out

    def _one(
        self, q: torch.Tensor, caches: torch.Tensor, batch: AttentionBatch, row: int
    ) -> torch.Tensor:
        """All queries of one sequence."""
        out: torch.Tensor = torch.ops.npu.npu_fused_infer_attention_score(
            q.flatten(1)[None],
            caches[0],
            caches[1],
            **self._options("BSH"),
            **self._causal(q.device),
            block_table=batch.block_table[row : row + 1].contiguous(),
            actual_seq_lengths=[q.shape[0]],
            actual_seq_lengths_kv=[batch.host_seq_lens[row]],
        )[0]
        return out.view_as(q)

    def _options(self, layout: str) -> dict[str, Any]:
        s = self.spec
        return {
            "num_heads": s.num_heads,
            "num_key_value_heads": s.num_kv_heads,
            "scale": s.scale,
            "input_layout": layout,
            "block_size": s.block_size,
        }

    def _causal(self, device: torch.device) -> dict[str, Any]:
        mask = _triangle(device)
        if self.spec.window is None:
            return {"atten_mask": mask, "sparse_mode": _CAUSAL}
        before = self.spec.window - 1  # a query sees itself, and so many before it
        return {
            "atten_mask": mask,
            "sparse_mode": _BAND,
            "pre_tokens": before,
            "next_tokens": 0,
        }


@cache
def _triangle(device: torch.device) -> torch.Tensor:
    """1 where a key lies behind its query."""
    return torch.ones(_MASK, _MASK, dtype=torch.int8).triu(1).to(device)


def _indices(
    rows: Sequence[int], places: Sequence[int], device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    both = torch.tensor([rows, places], dtype=torch.int64).to(device, non_blocking=True)
    return both[0], both[1]


def _only(batch: AttentionBatch, rows: torch.Tensor, which: Sequence[int]) -> AttentionBatch:
    """The sequences that have one query; where their tokens stand in T is not asked for."""
    return AttentionBatch(
        query_start=batch.query_start,
        seq_lens=batch.seq_lens.index_select(0, rows),
        block_table=batch.block_table.index_select(0, rows),
        slot_mapping=batch.slot_mapping,
        max_query_len=1,
        max_seq_len=batch.max_seq_len,
        host_query_lens=[1] * len(which),
        host_seq_lens=[batch.host_seq_lens[row] for row in which],
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    """What of a batch one query a sequence may look at.  `mask` [B, blocks * block_size]."""

    block_table: torch.Tensor
    mask: torch.Tensor | None
    window: int | None
    block_size: int

    def lengths(self, seq_lens: Sequence[int]) -> list[int]:
        """Of what the table leads to."""
        if self.window is None:
            return list(seq_lens)
        size = self.block_size
        return [n - max(0, n - self.window) // size * size for n in seq_lens]


def _seen(batch: AttentionBatch, spec: AttentionSpec) -> _Seen:
    """Made once a step for all layers of a kind."""
    key = ("npu_attention", spec.window)
    known = batch.memo.get(key)
    if isinstance(known, _Seen):
        return known
    made = _Seen(
        block_table=batch.block_table.contiguous(),
        mask=None,
        window=spec.window,
        block_size=spec.block_size,
    )
    if spec.window is not None:
        made = _last_blocks(batch, spec.window, spec.block_size)
    batch.memo[key] = made
    return made


def _last_blocks(batch: AttentionBatch, window: int, size: int) -> _Seen:
    """The blocks of the last `window` tokens, and which tokens of them come before."""
    width = batch.block_table.shape[1]
    most = min(width, (window + size - 2) // size + 1)
    device = batch.block_table.device
    hidden = (batch.seq_lens - window).clamp(min=0)  # [B] tokens before the window
    first = hidden // size
    places = (first[:, None] + torch.arange(most, device=device)).clamp(max=width - 1)
    table = batch.block_table.gather(1, places.long())
    before = (hidden - first * size)[:, None]
    mask = torch.arange(most * size, device=device) < before
    return _Seen(block_table=table.contiguous(), mask=mask, window=window, block_size=size)
