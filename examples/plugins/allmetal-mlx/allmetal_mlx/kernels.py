"""The same arithmetic as kernels of the contract: torch's host tensors in, MLX, host tensors out.

They serve the models that MLX has no executor for, and they are how the conformance kit, which
speaks torch, holds MLX's arithmetic to the reference.  Weights stay in MLX; keys and values are
copied over every step, which a model of one's own is spared.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import mlx.core as mx
import torch

from allmetal.platform.batch import AttentionBatch
from allmetal.platform.contract import AnyKernel, Support, Supported, Unsupported
from allmetal.platform.specs import (
    AttentionSpec,
    DenseWeight,
    GatedActivationOp,
    GatedActivationSpec,
    GGUFWeight,
    IntWeight,
    LinearOp,
    LinearSpec,
    PackedWeight,
    RMSNormOp,
    RMSNormSpec,
)
from allmetal_mlx import ops
from allmetal_mlx.bridge import to_mlx, to_torch

SpecT = TypeVar("SpecT", contravariant=True)
OpT = TypeVar("OpT", covariant=True)
FLOATS = ("float32", "bfloat16", "float16")


@dataclass(frozen=True, slots=True)
class MlxKernel(Generic[SpecT, OpT]):
    """`refuse` gives the reason a spec cannot be done, or None."""

    name: str
    refuse: Callable[[SpecT], str | None]
    make: Callable[[SpecT], OpT]

    def supports(self, spec: SpecT) -> Support:
        reason = self.refuse(spec)
        return Supported() if reason is None else Unsupported(reason)

    def build(self, spec: SpecT) -> OpT:
        return self.make(spec)


# ---- linear --------------------------------------------------------------------------------


class MlxLinear:
    def __init__(self, spec: LinearSpec) -> None:
        self._spec = spec

    def pack(self, weights: Mapping[str, torch.Tensor]) -> PackedWeight:
        if isinstance(self._spec.weight, IntWeight):
            scale = weights["scale"].view(self._spec.out_features, -1)
            return ops.quantised(to_mlx(weights["weight"]), to_mlx(scale), self._spec.weight.bits)
        dense = ops.Dense(to_mlx(weights["weight"]))
        mx.eval(dense.weight)
        return dense

    def __call__(
        self, x: torch.Tensor, weight: PackedWeight, bias: torch.Tensor | None
    ) -> torch.Tensor:
        assert isinstance(weight, ops.Dense | ops.Quantised)
        y = weight(to_mlx(x))
        return to_torch(y if bias is None else y + to_mlx(bias))


def _refuse_linear(spec: LinearSpec) -> str | None:
    match spec.weight:
        case DenseWeight(dtype=dtype) if spec.dtype in FLOATS:
            return None if dtype == spec.dtype else f"the weight must be {spec.dtype}, not {dtype}"
        case IntWeight(bits=bits, group_size=group, act_dtype=act) if spec.dtype in FLOATS:
            if act is not None:
                return f"activations stay as they are, not {act}"
            if bits not in (4, 8):
                return f"bits must be 4 or 8, not {bits}"
            if group not in (0, 32, 64, 128):
                return f"group_size must be 0, 32, 64 or 128, not {group}"
            if spec.in_features % (group or ops.GROUP):
                return f"in_features {spec.in_features} is no multiple of {group or ops.GROUP}"
            return None
        case GGUFWeight(type=name):
            return f"MLX does not compute with GGML's {name}"
        case _:
            return f"dtype must be one of {', '.join(FLOATS)}, not {spec.dtype}"


def _make_linear(spec: LinearSpec) -> LinearOp:
    return MlxLinear(spec)


# ---- elementwise ---------------------------------------------------------------------------


def _refuse_norm(spec: RMSNormSpec) -> str | None:
    if spec.dtype not in FLOATS:
        return f"dtype must be one of {', '.join(FLOATS)}, not {spec.dtype}"
    if spec.cast_before_weight and spec.dtype != "float32":
        return "MLX's norm rounds once, after the weight"
    return None


def _make_norm(spec: RMSNormSpec) -> RMSNormOp:
    def norm(
        x: torch.Tensor, weight: torch.Tensor, residual: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        s = x if residual is None else x + residual
        scale = to_mlx(weight).astype(mx.float32) + spec.offset
        wide = ops.rms_norm(to_mlx(s).astype(mx.float32), scale, spec.eps)
        return to_torch(wide).to(x.dtype), s

    return norm


def _refuse_dtype(spec: GatedActivationSpec) -> str | None:
    known = spec.dtype in FLOATS
    return None if known else f"dtype must be one of {', '.join(FLOATS)}, not {spec.dtype}"


def _make_activation(spec: GatedActivationSpec) -> GatedActivationOp:
    def activate(x: torch.Tensor) -> torch.Tensor:
        there = to_mlx(x)
        return to_torch(ops.gated(there[:, : spec.dim], there[:, spec.dim :], spec.activation))

    return activate


# ---- attention -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MlxAttention:
    """Gathers each sequence's pages on the host, and attends in MLX."""

    spec: AttentionSpec
    kv_layout: str = "nhd"

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
        out = torch.empty_like(q)
        start = 0
        lens = zip(batch.host_query_lens, batch.host_seq_lens, strict=True)
        for row, (num_queries, length) in enumerate(lens):
            here = slice(start, start + num_queries)
            if num_queries:
                position = length - num_queries
                out[here] = self._one(q[here], cache, batch.block_table[row], position, length)
            start += num_queries
        return out

    def _one(
        self, q: torch.Tensor, cache: torch.Tensor, blocks: torch.Tensor, position: int, length: int
    ) -> torch.Tensor:
        """One sequence's queries, the first at `position`."""
        spec = self.spec
        first = 0 if spec.window is None else max(0, position + 1 - spec.window)
        begin = first // spec.block_size
        pages = cache[blocks[begin : -(-length // spec.block_size)].long()]
        kv = pages.transpose(0, 1).flatten(1, 2)[:, first - begin * spec.block_size :]
        k, v = to_mlx(kv[:, : length - first].contiguous())
        seen = visible(mx.arange(position, length), mx.arange(first, length), spec.window)
        out = ops.attend(to_mlx(q)[None], k[None], v[None], seen[None], spec.scale, spec.soft_cap)
        return to_torch(out[0])


def visible(queries: mx.array, keys: mx.array, window: int | None) -> mx.array:
    """Positions of Q queries and S keys -> [Q, S]."""
    seen = keys[None] <= queries[:, None]
    return seen if window is None else seen & (keys[None] > queries[:, None] - window)


def _refuse_attention(spec: AttentionSpec) -> str | None:
    if spec.dtype not in FLOATS or spec.kv_dtype != spec.dtype:
        return f"keys and values must be of the activations' dtype, not {spec.kv_dtype}"
    return "sinks are not written yet" if spec.sinks else None


KERNELS: Mapping[str, Sequence[AnyKernel]] = {
    "attention": (MlxKernel("mlx_attention", _refuse_attention, MlxAttention),),
    "linear": (MlxKernel("mlx_linear", _refuse_linear, _make_linear),),
    "rms_norm": (MlxKernel("mlx_rms_norm", _refuse_norm, _make_norm),),
    "gated_activation": (MlxKernel("mlx_gated", _refuse_dtype, _make_activation),),
}
