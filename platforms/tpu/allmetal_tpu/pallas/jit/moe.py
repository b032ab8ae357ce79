"""Routed experts: rows are sorted by expert, go through two grouped products, and are summed.

Legend: T tokens, C channels, A experts of a token, R = T * A rows, E experts, I inner size.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from allmetal_tpu.pallas.jit.grouped_matmul import grouped_matmul
from allmetal_tpu.pallas.shapes import ExpertsShape

_ACTIVATIONS = {
    "silu": jax.nn.silu,
    "gelu": lambda x: jax.nn.gelu(x, approximate=False),
    "gelu_tanh": lambda x: jax.nn.gelu(x, approximate=True),
    "relu": jax.nn.relu,
}


def experts(
    x: jax.Array,
    ids: jax.Array,
    shares: jax.Array,
    gate_up: jax.Array,
    down: jax.Array,
    scales: tuple[jax.Array, jax.Array] | None = None,
    *,
    shape: ExpertsShape,
    interpret: Any = False,
) -> jax.Array:
    """x [T, C], ids [T, A] int32, shares [T, A] float32, gate_up [E, C', 2 I'], down [E, I', C']
    with scales [E, 1, ..] float32 if of 8 bits -> [T, C].

    Between the products numbers are rounded to x's type, once.
    """
    each = ids.reshape(-1)
    order = jnp.argsort(each, stable=True)
    sizes = jnp.sum(each[:, None] == jnp.arange(gate_up.shape[0]), axis=0, dtype=jnp.int32)
    gate_up_scale, down_scale = (None, None) if scales is None else scales
    rows = x[order // ids.shape[1]]
    inner = grouped_matmul(
        rows, gate_up, sizes, gate_up_scale, shape=shape.gate_up, interpret=interpret, wide=True
    )
    gate, up = jnp.split(inner, 2, axis=1)
    inner = (_ACTIVATIONS[shape.activation](gate) * up).astype(x.dtype)
    out = grouped_matmul(
        inner, down, sizes, down_scale, shape=shape.down, interpret=interpret, wide=True
    )
    back = out[jnp.argsort(order)].reshape(*ids.shape, -1)
    return jnp.sum(back * shares[..., None].astype(jnp.float32), axis=1).astype(x.dtype)
