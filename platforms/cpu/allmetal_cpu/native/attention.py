"""Paged attention in C++: decode at the speed of memory, prefill from the caches."""

from __future__ import annotations

import torch

from allmetal.platform.batch import AttentionBatch
from allmetal.platform.specs import AttentionOp, AttentionSpec
from allmetal_cpu.native.kernel import NativeKernel, refuse_dtype, refuse_kv_dtype
from allmetal_cpu.native.library import Library, pointer

_MAX_HEAD_DIM = 256
_MAX_GROUP = 32


def _refuse(spec: AttentionSpec) -> str | None:
    if spec.head_dim > _MAX_HEAD_DIM:
        return f"head_dim must be at most {_MAX_HEAD_DIM}, not {spec.head_dim}"
    if spec.num_heads % spec.num_kv_heads:
        return f"{spec.num_heads} query heads do not divide among {spec.num_kv_heads} of the cache"
    if spec.num_heads > _MAX_GROUP * spec.num_kv_heads:
        return f"at most {_MAX_GROUP} query heads may share one of the cache"
    return refuse_dtype(spec.dtype) or refuse_kv_dtype(spec.dtype, spec.kv_dtype)


class _Op:
    kv_layout = "hnd"

    def __init__(self, spec: AttentionSpec, library: Library) -> None:
        s = self._spec = spec
        self._run = library.function("attention", spec.dtype)
        self._shape = (s.num_heads, s.num_kv_heads, s.head_dim, s.block_size)
        self._rest = (s.window or 0, s.scale, s.soft_cap or 0.0)

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
        q = q.contiguous()
        out = torch.empty_like(q)
        if sinks is not None:
            sinks = sinks.float()
        table = batch.block_table
        self._run(
            out.data_ptr(),
            q.data_ptr(),
            cache.data_ptr(),
            table.data_ptr(),
            table.stride(0),
            batch.query_start.data_ptr(),
            batch.seq_lens.data_ptr(),
            pointer(sinks),
            batch.seq_lens.shape[0],
            *self._shape,
            *self._rest,
        )
        return out


ATTENTION: NativeKernel[AttentionSpec, AttentionOp] = NativeKernel(_refuse, _Op)
