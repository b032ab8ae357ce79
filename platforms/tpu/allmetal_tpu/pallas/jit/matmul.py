"""Matrix product over weights of 8 bits, widened tile by tile next to the matrix unit.

With few tokens it is bound by reading the weights once, C * N bytes: half of what 16-bit ones take.

Legend: T tokens, C channels, N outputs, S = C / group scales a column, m, k, n a tile.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from allmetal_tpu.pallas.jit.product import product, widen
from allmetal_tpu.pallas.shapes import MatmulShape, round_up

_LANES = 128
_TINY = 1.1754943508222875e-38  # the least normal float32


def quantised_matmul(
    x: jax.Array,
    weight: jax.Array,
    scale: jax.Array,
    bias: jax.Array | None = None,
    *,
    shape: MatmulShape,
    interpret: Any = False,
) -> jax.Array:
    """x [T, C] float, weight [C', N'] of 8 bits, scale [S, N'] float32, bias [N] -> [T, N].

    C' and N' are padded to whole tiles (`shape.packed`), with zeros.  With `shape.act_dtype` each
    token is rounded to it, with one scale, before.
    """
    num_tokens, out_dtype = x.shape[0], x.dtype
    x_scale = None
    if shape.act_dtype is not None:
        x, x_scale = narrow(x, jnp.dtype(shape.act_dtype))
    rows = round_up(num_tokens, shape.m)
    x = jnp.pad(x, ((0, rows - num_tokens), (0, weight.shape[0] - x.shape[1])))
    # Rounded once: where something follows, sums stay wide.
    wide = out_dtype if x_scale is None and bias is None else jnp.float32
    out = _call(x, weight, scale, wide, shape, interpret)[:num_tokens, : shape.out_features]
    if x_scale is not None:
        out = out * x_scale
    if bias is not None:
        out = out + bias.astype(jnp.float32)
    return out.astype(out_dtype)


def narrow(x: jax.Array, dtype: Any) -> tuple[jax.Array, jax.Array]:
    """Each row as numbers of `dtype` times one scale [T, 1] float32.

    Integers are -127 .. 127.  Floats are multiplied by the type's largest before they are divided
    by the row's: what lies in the middle of two numbers is to stay there.
    """
    wide = x.astype(jnp.float32)
    largest = jnp.max(jnp.abs(wide), axis=-1, keepdims=True)
    if jnp.issubdtype(dtype, jnp.integer):
        scale = largest / 127
        return jnp.round(wide / jnp.maximum(scale, _TINY)).astype(dtype), scale
    most = float(jnp.finfo(dtype).max)
    largest = jnp.maximum(largest, _TINY)
    wide = jnp.clip(wide * most / largest, -most, most)
    return _representable(wide, dtype).astype(dtype), largest / most


def _representable(x: jax.Array, dtype: Any) -> jax.Array:
    """float32 to the nearest numbers of `dtype`, even ones from the middle.  A cast alone may go by
    way of 16 bits and round twice."""
    info = jnp.finfo(dtype)
    dropped = 23 - info.nmant
    bits = jax.lax.bitcast_convert_type(x, jnp.uint32)
    half = (1 << (dropped - 1)) - 1 + ((bits >> dropped) & 1)
    normal = jax.lax.bitcast_convert_type((bits + half) >> dropped << dropped, jnp.float32)
    step = float(info.smallest_subnormal)
    return jnp.where(jnp.abs(x) < float(info.tiny), jnp.round(x / step) * step, normal)


def _call(
    x: jax.Array, weight: jax.Array, scale: jax.Array, dtype: Any, s: MatmulShape, interpret: Any
) -> jax.Array:
    (rows, _), (inner, columns) = x.shape, weight.shape
    scales = s.k // s.group if s.group else 1
    return pl.pallas_call(
        functools.partial(_kernel, s=s),
        grid=(columns // s.n, rows // s.m, inner // s.k),
        in_specs=[
            pl.BlockSpec((s.m, s.k), lambda n, m, k: (m, k)),
            pl.BlockSpec((s.k, s.n), lambda n, m, k: (k, n)),
            pl.BlockSpec((1, scales, s.n), lambda n, m, k: (k if s.group else 0, 0, n)),
        ],
        out_specs=pl.BlockSpec((s.m, s.n), lambda n, m, k: (m, n)),
        out_shape=jax.ShapeDtypeStruct((rows, columns), dtype),
        scratch_shapes=[pltpu.VMEM((s.m, s.n), jnp.int32 if s.integer_sums else jnp.float32)],
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "parallel", "arbitrary"),
            vmem_limit_bytes=s.vmem_limit,
        ),
        interpret=interpret,
        name="quantised_matmul",
    )(x, weight, scale.reshape(-1, scales, columns))


def _kernel(x: Any, weight: Any, scale: Any, out: Any, sums: Any, *, s: MatmulShape) -> None:
    step = pl.program_id(2)

    @pl.when(step == 0)
    def begin() -> None:
        sums[...] = jnp.zeros(sums.shape, sums.dtype)

    if not s.group:
        sums[...] += product(x[...], weight[...], native=s.native)
    elif s.group % _LANES == 0:
        for n in range(s.k // s.group):
            part = slice(n * s.group, (n + 1) * s.group)
            sums[...] += product(x[:, part], weight[part], native=s.native) * scale[0, n : n + 1]
    else:
        # Less than a lane's worth of channels: scaled before, and rounded to x's type there, or to
        # none where x is integers.
        rows = x[...] if x.dtype.itemsize > 1 else widen(x[...], jnp.float32)
        wide = widen(weight[...], jnp.float32).reshape(s.k // s.group, s.group, s.n)
        wide = (wide * scale[0][:, None]).reshape(s.k, s.n)
        sums[...] += product(rows, wide.astype(rows.dtype), native=False)

    @pl.when(step == pl.num_programs(2) - 1)
    def finish() -> None:
        total = sums[...].astype(jnp.float32)
        out[...] = (total if s.group else total * scale[0]).astype(out.dtype)
