"""One tile's product, whatever its weights are kept in."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import lax


def product(x: Any, weight: Any, *, native: bool) -> Any:
    """x [m, k] times weight [k, n], in int32 for two integers the unit multiplies, else float32.

    `native`: the unit multiplies 8-bit numbers of x's kind.  Where it does not, they become
    bfloat16, which holds every one of them.
    """
    both_narrow = x.dtype.itemsize == 1 and weight.dtype.itemsize == 1
    if both_narrow and native:
        sums = jnp.int32 if jnp.issubdtype(x.dtype, jnp.integer) else jnp.float32
        return _dot(x, weight, sums)
    wide = jnp.float32 if x.dtype == jnp.float32 else jnp.bfloat16
    return _dot(widen(x, wide), widen(weight, wide), jnp.float32)


def widen(x: Any, dtype: Any) -> Any:
    if x.dtype == dtype:
        return x
    # Through float32, which every generation converts 8-bit numbers to.
    return x.astype(jnp.float32).astype(dtype) if x.dtype.itemsize == 1 else x.astype(dtype)


def _dot(x: Any, weight: Any, sums: Any) -> Any:
    return lax.dot_general(
        x,
        weight,
        (((1,), (0,)), ((), ())),
        precision=lax.Precision.HIGHEST if x.dtype == jnp.float32 else None,
        preferred_element_type=sums,
    )
