"""Attention on Hopper: prompts by a kernel written for it, everything else by Triton's.

A prompt is bound by arithmetic, 4 * num_heads * head_dim operations a visible pair of tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from allmetal.platform.batch import AttentionBatch
from allmetal.platform.contract import Support, Supported, Unsupported
from allmetal.platform.specs import AttentionOp, AttentionSpec
from allmetal_cuda.jit.hopper_attention import hopper_attention
from allmetal_triton.ops.attention import Launch, PagedAttention, TritonAttention
from allmetal_triton.ops.attention_tiles import Tiles
from allmetal_triton.target import Target

_SLICE = 64
_ROWS = 128
_TILES = {64: (128, 3, 2), 128: (128, 2, 2), 256: (64, 2, 1)}
"""head_dim -> keys a tile; tiles of keys and of queries in shared memory, of 227 KiB."""
_FEW = {64: (128, 3, 2), 128: (64, 3, 2)}
"""The same for items of few rows."""
_MOST_FEW_ROWS = 64
_UNITS_A_CORE = 2.5
"""From here on sequences follow one another on a core, and copies must run on from one to the
next; with fewer, two programs a core are as fast."""
_DTYPES = ("bfloat16", "float16")
_LEAST_PAGE = 16


@dataclass(frozen=True, slots=True)
class HopperAttention:
    target: Target
    name: str = "hopper_attention"

    def supports(self, spec: AttentionSpec) -> Support:
        if spec.dtype not in _DTYPES or spec.kv_dtype != spec.dtype:
            return Unsupported(
                f"takes one of {', '.join(_DTYPES)} throughout, not {spec.dtype} over"
                f" {spec.kv_dtype}"
            )
        if spec.head_dim not in _TILES:
            known = ", ".join(map(str, _TILES))
            return Unsupported(f"head_dim must be one of {known}, not {spec.head_dim}")
        if spec.block_size < _LEAST_PAGE or spec.block_size & (spec.block_size - 1):
            return Unsupported(
                f"block_size must be a power of two from {_LEAST_PAGE} on, not {spec.block_size}"
            )
        rest = TritonAttention(self.target).supports(spec)
        return Supported(rank=5) if isinstance(rest, Supported) else rest

    def build(self, spec: AttentionSpec) -> AttentionOp:
        return PagedAttention(spec, self.target, _Units(spec, self.target))


class _Units:
    """Items for tiles of many rows, and those of few rows where there are many."""

    def __init__(self, spec: AttentionSpec, target: Target) -> None:
        self._spec = spec
        self._num_cores = target.num_cores()
        self._options = target.launch_options
        self._descriptors: dict[tuple[int, int, int], TensorDescriptor] = {}

    @property
    def tiles(self) -> Tiles:
        keys, stages, _ = _TILES[self._spec.head_dim]
        return Tiles(
            m=_ROWS,
            n=keys,
            d=self._spec.head_dim,
            rows=_ROWS,
            phases=True,
            num_warps=4,
            num_stages=stages,
        )

    def takes(self, launch: Launch) -> bool:
        heads = self._spec.num_kv_heads
        return (
            heads > 1
            and self._spec.head_dim in _FEW
            and launch.tiles.rows <= _MOST_FEW_ROWS
            and launch.slots * heads >= _UNITS_A_CORE * self._num_cores
        )

    def __call__(
        self,
        launch: Launch,
        q: torch.Tensor,
        cache: torch.Tensor,
        out: torch.Tensor,
        batch: AttentionBatch,
        sinks: torch.Tensor | None,
    ) -> None:
        spec, split = self._spec, not launch.whole
        keys, stages, buffers = (_FEW if split else _TILES)[spec.head_dim]
        num_units = launch.slots * spec.num_kv_heads
        hopper_attention[(min(self._num_cores, num_units),)](
            q,
            self._descriptor(cache, min(spec.block_size, keys)),
            out,
            batch.block_table,
            launch.items,
            launch.counters,
            launch.part_sums,
            launch.part_values,
            sinks,
            spec.scale,
            q.stride(0),
            batch.block_table.stride(0),
            num_units,
            KV_HEADS=spec.num_kv_heads,
            GROUP=spec.num_heads // spec.num_kv_heads,
            PAGE=spec.block_size,
            WINDOW=spec.window or 0,
            SOFT_CAP=spec.soft_cap,
            N=keys,
            D=spec.head_dim,
            BOX=min(spec.block_size, keys),
            STAGES=stages,
            BUFFERS=buffers,
            SPLIT=split,
            PART_ROWS=launch.tiles.rows,
            num_warps=4,
            **self._options,
        )

    def _descriptor(self, cache: torch.Tensor, box: int) -> TensorDescriptor:
        """The cache as rows of tokens, keys and values of a block behind each other."""
        key = (cache.data_ptr(), cache.shape[0], box)
        if key not in self._descriptors:
            layout = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=2)
            rows = cache.view(-1, self._spec.num_kv_heads * self._spec.head_dim)
            self._descriptors[key] = TensorDescriptor.from_tensor(rows, [box, _SLICE], layout)
        return self._descriptors[key]
