"""Kernels that can be recorded, and the events of a device that records them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from allmetal.platform import reference
from allmetal.platform.batch import AttentionBatch, DeviceOnly
from allmetal.platform.contract import Support, Supported, Unsupported
from allmetal.platform.specs import AttentionOp, AttentionSpec


@dataclass(frozen=True)
class DeviceAttention:
    """Where lengths are on the device only: every slot of the tables, and a mask."""

    spec: AttentionSpec
    exact: AttentionOp

    @property
    def kv_layout(self) -> str:
        return self.exact.kv_layout

    def cache_shape(self, num_blocks: int) -> tuple[int, ...]:
        return self.exact.cache_shape(num_blocks)

    def __call__(
        self,
        q: torch.Tensor,
        cache: torch.Tensor,
        batch: AttentionBatch,
        sinks: torch.Tensor | None = None,
    ) -> torch.Tensor:
        if not isinstance(batch.host_seq_lens, DeviceOnly):
            return self.exact(q, cache, batch, sinks)
        spec, size, on = self.spec, self.spec.block_size, q.device
        tokens = torch.arange(len(q), device=on)
        ends = batch.query_start[1:].contiguous()
        row = torch.searchsorted(ends, tokens, right=True)
        position = batch.seq_lens[row] - (ends[row] - tokens)
        at = torch.arange(batch.block_table.shape[1] * size, device=on)
        seen = at <= position[:, None]
        if spec.window is not None:
            seen &= at > position[:, None] - spec.window
        owned = at[::size] <= position[:, None]
        kv = cache[batch.block_table[row].long() * owned]
        k, v = kv[:, :, 0].flatten(1, 2), kv[:, :, 1].flatten(1, 2)  # [T, P * size, K, D]
        groups = q.view(len(q), spec.num_kv_heads, -1, spec.head_dim)
        scores = torch.einsum("tkgd,tskd->tkgs", groups, k) * spec.scale
        if spec.soft_cap is not None:
            scores = spec.soft_cap * torch.tanh(scores / spec.soft_cap)
        scores = scores.masked_fill(~seen[:, None, None], float("-inf"))
        values = v.masked_fill(~seen[:, :, None, None], 0.0)
        return torch.einsum("tkgs,tskd->tkgd", scores.softmax(-1), values).flatten(1, 2)


@dataclass(frozen=True)
class RecordableAttention:
    wrap: Callable[[Any], Any] = lambda op: op
    name: str = "recordable"

    def supports(self, spec: AttentionSpec) -> Support:
        return Unsupported("no sinks") if spec.sinks else Supported()

    def build(self, spec: AttentionSpec) -> Any:
        (kernel,) = reference.kernels()["attention"]
        return self.wrap(DeviceAttention(spec, kernel.build(spec)))


OFFERED: Mapping[str, Any] = {"attention": (RecordableAttention(),)}


@dataclass
class Events:
    """Of a device whose results are there as soon as they are asked for."""

    def event(self) -> Any:
        return self

    def record(self) -> None: ...

    def synchronize(self) -> None: ...

    def query(self) -> bool:
        return False
