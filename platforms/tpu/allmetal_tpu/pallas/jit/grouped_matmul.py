"""Matrix product of rows sorted by expert, each expert's with its own matrix.

An item is one expert's rows within one tile of rows.  The items of a tile follow each other, and
each writes its own rows of the tile, which stays next to the core meanwhile: no row is padded, and
an expert without rows is never read.

Source: megablocks, arXiv:2211.15841.

Legend: R rows, C channels, N outputs, E experts, I items, m, k, n a tile.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from allmetal_tpu.pallas.jit.product import product
from allmetal_tpu.pallas.shapes import MatmulShape, round_up


def grouped_matmul(
    x: jax.Array,
    weight: jax.Array,
    sizes: jax.Array,
    scale: jax.Array | None = None,
    *,
    shape: MatmulShape,
    interpret: Any = False,
    wide: bool = False,
) -> jax.Array:
    """x [R, C] whose first sizes[0] rows belong to expert 0 and so on, weight [E, C', N'], sizes
    [E] int32 with the sum R, scale [E, 1, N'] float32 -> [R, N] in x's type, or `wide` in float32.

    C' and N' are padded to whole tiles (`shape.packed`), with zeros.
    """
    num_rows = x.shape[0]
    rows = round_up(num_rows, shape.m)
    x = jnp.pad(x, ((0, rows - num_rows), (0, weight.shape[1] - x.shape[1])))
    scalars = _schedule(sizes, rows // shape.m, shape.m)
    dtype = jnp.dtype("float32") if wide else x.dtype
    out = _call(scalars, x, weight, scale, dtype, shape, interpret)
    return out[:num_rows, : shape.out_features]


def _schedule(sizes: jax.Array, num_tiles: int, tile: int) -> tuple[jax.Array, ...]:
    """Number of items [1], each one's expert and tile [I], where experts' rows begin [E + 1]."""
    ends = jnp.cumsum(sizes, dtype=jnp.int32)
    begins = ends - sizes
    first = begins // tile
    count = jnp.where(sizes > 0, (ends - 1) // tile - first + 1, 0)
    item_ends = jnp.cumsum(count, dtype=jnp.int32)
    # A tile has an item, and one more for each border between experts within it.
    item = jnp.arange(num_tiles + sizes.shape[0] - 1, dtype=jnp.int32)
    # Steps behind the last item look like it, so that nothing is read for them.
    item = jnp.minimum(item, item_ends[-1] - 1)
    expert = jnp.searchsorted(item_ends, item, side="right").astype(jnp.int32)
    expert = jnp.clip(expert, 0, sizes.shape[0] - 1)
    tiles = first[expert] + item - (item_ends - count)[expert]
    offsets = jnp.concatenate([begins, ends[-1:]])
    return item_ends[-1:], expert, jnp.clip(tiles, 0, num_tiles - 1), offsets


def _call(
    scalars: tuple[jax.Array, ...],
    x: jax.Array,
    weight: jax.Array,
    scale: jax.Array | None,
    dtype: Any,
    s: MatmulShape,
    interpret: Any,
) -> jax.Array:
    rows, (_, inner, columns) = x.shape[0], weight.shape
    steps = inner // s.k

    def part(k: Any, item: Any, num: Any) -> Any:
        return jnp.where(item < num[0], k, steps - 1)

    specs = [
        pl.BlockSpec((s.m, s.k), lambda n, i, k, num, of, tile, _: (tile[i], part(k, i, num))),
        pl.BlockSpec((1, s.k, s.n), lambda n, i, k, num, of, *_: (of[i], part(k, i, num), n)),
    ]
    if scale is not None:
        specs.append(pl.BlockSpec((1, 1, s.n), lambda n, i, k, num, of, *_: (of[i], 0, n)))
    grid = pltpu.PrefetchScalarGridSpec(
        num_scalar_prefetch=len(scalars),
        grid=(columns // s.n, scalars[1].shape[0], steps),
        in_specs=specs,
        out_specs=pl.BlockSpec((s.m, s.n), lambda n, i, k, num, of, tile, _: (tile[i], n)),
        scratch_shapes=[pltpu.VMEM((s.m, s.n), jnp.float32)],
    )
    return pl.pallas_call(
        functools.partial(_kernel if scale is not None else _kernel_without_scale, s=s),
        grid_spec=grid,
        out_shape=jax.ShapeDtypeStruct((rows, columns), dtype),
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "arbitrary", "arbitrary"),
            vmem_limit_bytes=s.vmem_limit,
        ),
        interpret=interpret,
        name="grouped_matmul",
    )(*scalars, x, weight, *([] if scale is None else [scale]))


def _kernel_without_scale(
    num_items: Any,
    experts: Any,
    tiles: Any,
    offsets: Any,
    x: Any,
    weight: Any,
    out: Any,
    sums: Any,
    *,
    s: MatmulShape,
) -> None:
    _kernel(num_items, experts, tiles, offsets, x, weight, None, out, sums, s=s)


def _kernel(
    num_items: Any,
    experts: Any,
    tiles: Any,
    offsets: Any,
    x: Any,
    weight: Any,
    scale: Any,
    out: Any,
    sums: Any,
    *,
    s: MatmulShape,
) -> None:
    item, step = pl.program_id(1), pl.program_id(2)

    @pl.when(item < num_items[0])
    def live() -> None:
        @pl.when(step == 0)
        def begin() -> None:
            sums[...] = jnp.zeros(sums.shape, sums.dtype)

        sums[...] += product(x[...], weight[0], native=s.native)

        @pl.when(step == pl.num_programs(2) - 1)
        def finish() -> None:
            expert = experts[item]
            row = tiles[item] * s.m + lax.broadcasted_iota(jnp.int32, (s.m, 1), 0)
            mine = (row >= offsets[expert]) & (row < offsets[expert + 1])
            fresh = (item == 0) | (tiles[jnp.maximum(item - 1, 0)] != tiles[item])
            total = sums[...] if scale is None else sums[...] * scale[0]
            others = jnp.where(fresh, 0.0, out[...].astype(jnp.float32))
            out[...] = jnp.where(mine, total, others).astype(out.dtype)
