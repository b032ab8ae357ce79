"""Ragged paged attention as an op of torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from allmetal.platform.contract import Support, Supported, Unsupported
from allmetal.platform.specs import AttentionOp, AttentionSpec
from allmetal_tpu.pallas.bridge import Target, torch_op
from allmetal_tpu.pallas.ops.floats import refuse_dtype
from allmetal_tpu.pallas.shapes import (
    ROW_TILE,
    attention_shape,
    cache_parts,
    cache_width,
)

if TYPE_CHECKING:
    import torch

    from allmetal.platform.batch import AttentionBatch

LANES_LAYOUT = "hnd_lanes"
"""As "hnd", but a row is a whole number of lanes: [blocks, parts, K, block_size, lanes], with keys
beside values in one part where both fit, and zeros behind."""
_LARGEST_HEAD = 256
_MANY = 2048
"""Tokens of a step that is large, for the memory its tiles take."""


@dataclass(frozen=True, slots=True)
class PallasAttention:
    target: Target
    name: str = "pallas_attention"

    def supports(self, spec: AttentionSpec) -> Support:
        if reason := self.target.refuse() or refuse_dtype(spec.dtype):
            return Unsupported(reason)
        kept = (spec.dtype, "float8_e4m3fn", "float8_e5m2")
        if spec.kv_dtype not in kept:
            return Unsupported(f"kv_dtype must be one of {', '.join(kept)}, not {spec.kv_dtype}")
        if spec.num_heads % spec.num_kv_heads:
            return Unsupported(
                f"{spec.num_heads} query heads do not divide among {spec.num_kv_heads}"
            )
        if not 8 <= spec.head_dim <= _LARGEST_HEAD:
            return Unsupported(f"head_dim must be 8 to {_LARGEST_HEAD}, not {spec.head_dim}")
        if spec.block_size % ROW_TILE[spec.kv_dtype]:
            return Unsupported(
                f"page size must be a multiple of {ROW_TILE[spec.kv_dtype]} with keys in"
                f" {spec.kv_dtype}, not {spec.block_size}"
            )
        chip = self.target.chip
        shape = attention_shape(spec, chip, num_tokens=_MANY, num_seqs=1, single=False)
        if shape.vmem_bytes > chip.vmem_limit:
            return Unsupported(
                f"takes {shape.vmem_bytes >> 20} MiB beside a core of {chip.name}, which has"
                f" {chip.vmem_limit >> 20} MiB for a kernel"
            )
        return Supported(rank=10)

    def build(self, spec: AttentionSpec) -> AttentionOp:
        return _Attention(spec, self.target)


class _Attention:
    def __init__(self, spec: AttentionSpec, target: Target) -> None:
        self._spec = spec
        self._single = _made(spec, target, single=True)
        self._mixed = _made(spec, target, single=False)

    @property
    def kv_layout(self) -> str:
        return LANES_LAYOUT if self._spec.head_dim % 128 else "hnd"

    def cache_shape(self, num_blocks: int) -> tuple[int, ...]:
        s = self._spec
        parts, width = cache_parts(s.head_dim), cache_width(s.head_dim)
        return (num_blocks, parts, s.num_kv_heads, s.block_size, width)

    def __call__(
        self,
        q: torch.Tensor,
        cache: torch.Tensor,
        batch: AttentionBatch,
        sinks: torch.Tensor | None = None,
    ) -> torch.Tensor:
        assert (sinks is not None) == self._spec.sinks
        if not q.shape[0]:
            return q.clone()
        op = self._single if batch.max_query_len == 1 else self._mixed
        rest = () if sinks is None else (sinks,)
        lens, starts = batch.seq_lens, batch.query_start
        out: torch.Tensor = op(q.contiguous(), cache, lens, starts, batch.block_table, *rest)
        return out


def _made(spec: AttentionSpec, target: Target, *, single: bool) -> Callable[..., Any]:
    from allmetal_tpu.pallas.jit.calls import attention

    sized = partial(attention_shape, spec, target.chip, single=single)
    function = attention(
        lambda tokens, seqs: sized(num_tokens=tokens, num_seqs=seqs),
        sinks=spec.sinks,
        interpret=target.interpret,
    )
    return torch_op("decode_attention" if single else "attention", function)
