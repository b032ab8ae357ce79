"""Functions whose annotations say what they take, as an op of torch needs them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from allmetal_tpu.pallas.jit.attention import ragged_paged_attention
from allmetal_tpu.pallas.jit.matmul import quantised_matmul
from allmetal_tpu.pallas.jit.moe import experts
from allmetal_tpu.pallas.shapes import AttentionShape, ExpertsShape, MatmulShape


def attention(
    shape_for: Callable[[int, int], AttentionShape], *, sinks: bool, interpret: bool
) -> Callable[..., Any]:
    """`shape_for` numbers of tokens and sequences."""

    def with_sinks(
        q: jax.Array,
        cache: jax.Array,
        seq_lens: jax.Array,
        query_start: jax.Array,
        block_table: jax.Array,
        sinks: jax.Array,
    ) -> jax.Array:
        shape = shape_for(q.shape[0], seq_lens.shape[0])
        return ragged_paged_attention(
            q, cache, seq_lens, query_start, block_table, sinks, shape=shape, interpret=interpret
        )

    def without(
        q: jax.Array,
        cache: jax.Array,
        seq_lens: jax.Array,
        query_start: jax.Array,
        block_table: jax.Array,
    ) -> jax.Array:
        shape = shape_for(q.shape[0], seq_lens.shape[0])
        return ragged_paged_attention(
            q, cache, seq_lens, query_start, block_table, shape=shape, interpret=interpret
        )

    return with_sinks if sinks else without


def linear(
    shape_for: Callable[[int], MatmulShape], *, bias: bool, interpret: bool
) -> Callable[..., Any]:
    """`shape_for` a number of tokens."""

    def with_bias(x: jax.Array, weight: jax.Array, scale: jax.Array, bias: jax.Array) -> jax.Array:
        shape = shape_for(x.shape[0])
        return quantised_matmul(x, weight, scale, bias, shape=shape, interpret=interpret)

    def without(x: jax.Array, weight: jax.Array, scale: jax.Array) -> jax.Array:
        return quantised_matmul(x, weight, scale, shape=shape_for(x.shape[0]), interpret=interpret)

    return with_bias if bias else without


def moe(
    shape_for: Callable[[int], ExpertsShape], *, scaled: bool, interpret: bool
) -> Callable[..., Any]:
    """`shape_for` a number of tokens."""

    def with_scales(
        x: jax.Array,
        ids: jax.Array,
        shares: jax.Array,
        gate_up: jax.Array,
        down: jax.Array,
        gate_up_scale: jax.Array,
        down_scale: jax.Array,
    ) -> jax.Array:
        shape, scales = shape_for(x.shape[0]), (gate_up_scale, down_scale)
        return experts(x, ids, shares, gate_up, down, scales, shape=shape, interpret=interpret)

    def without(
        x: jax.Array, ids: jax.Array, shares: jax.Array, gate_up: jax.Array, down: jax.Array
    ) -> jax.Array:
        shape = shape_for(x.shape[0])
        return experts(x, ids, shares, gate_up, down, shape=shape, interpret=interpret)

    return with_scales if scaled else without
