"""Quantised and grouped products, interpreted, against float64."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from interpreting import BFLOAT16, FLOAT32, error, quickly, strictly

from allmetal_tpu.pallas.chips import CHIPS
from allmetal_tpu.pallas.jit.grouped_matmul import grouped_matmul
from allmetal_tpu.pallas.jit.matmul import narrow, quantised_matmul
from allmetal_tpu.pallas.shapes import MatmulShape, matmul_shape

pytestmark = pytest.mark.timeout(400)  # under load; seconds otherwise

WEIGHTS = [
    # bytes of a weight, channels that share a scale, activations
    ("int8", 0, None),
    ("int8", 128, None),
    ("int8", 32, None),
    ("int8", 0, "int8"),
    ("int8", 128, "int8"),
    ("int8", 32, "int8"),
    ("float8_e4m3fn", 0, None),
    ("float8_e4m3fn", 0, "float8_e4m3fn"),
    ("float8_e5m2", 0, None),
]


def wide(x: jax.Array) -> np.ndarray:
    return np.asarray(x.astype(jnp.float32)).astype(np.float64)


def draw_weight(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> jax.Array:
    numbers = rng.integers(-127, 128, shape) if dtype == "int8" else rng.standard_normal(shape)
    return jnp.asarray(numbers, jnp.dtype(dtype))


def padded(x: jax.Array, rows: int, columns: int) -> jax.Array:
    before = [(0, 0)] * (x.ndim - 2)
    return jnp.pad(x, [*before, (0, rows - x.shape[-2]), (0, columns - x.shape[-1])])


@pytest.mark.parametrize(("weight_dtype", "group", "act_dtype"), WEIGHTS)
def test_quantised_products_agree_with_float64(
    rng: np.random.Generator, weight_dtype: str, group: int, act_dtype: str | None
) -> None:
    dtype = str(rng.choice(["float32", "bfloat16"]))
    tokens, outputs = int(rng.integers(1, 90)), int(rng.integers(1, 700))
    inner = int(rng.integers(1, 20)) * group if group else int(rng.integers(1, 2200))
    chip = CHIPS[str(rng.choice([*CHIPS]))]
    x = jnp.asarray(rng.standard_normal((tokens, inner)), jnp.dtype(dtype))
    weight = draw_weight(rng, (inner, outputs), weight_dtype)
    scale = jnp.asarray(rng.random((inner // group if group else 1, outputs)) + 0.5, jnp.float32)
    given = wide(x)
    if act_dtype is not None:
        values, scales = narrow(x, jnp.dtype(act_dtype))
        given = wide(values) * wide(scales)
    want = given @ (wide(weight) * np.repeat(wide(scale), group or inner, axis=0))
    shape = matmul_shape(
        inner,
        outputs,
        chip,
        num_rows=tokens,
        dtype=dtype,
        weight_dtype=weight_dtype,
        group=group,
        act_dtype=act_dtype,
    )

    def call(interpret: Any) -> jax.Array:
        return quantised_matmul(
            x,
            padded(weight, *shape.packed),
            padded(scale, shape.packed[0] // group if group else 1, shape.packed[1]),
            shape=shape,
            interpret=interpret,
        )

    how = strictly if (group, act_dtype) == (128, None) else quickly
    assert error(how(call), want) < (FLOAT32 if dtype == "float32" else BFLOAT16)


def test_tokens_are_rounded_to_integers_as_the_reference_does(rng: np.random.Generator) -> None:
    x = rng.standard_normal((5, 300)).astype(np.float32)
    x[2] = 0

    values, scale = narrow(jnp.asarray(x), jnp.dtype("int8"))

    most = np.abs(x).max(-1, keepdims=True)
    assert np.array_equal(np.asarray(scale), most / np.float32(127))
    assert (np.abs(wide(values) * wide(scale) - x) <= most / 254 * 1.0001).all()
    assert not np.asarray(values)[2].any()


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2"])
def test_tokens_are_rounded_to_8_bit_floats_once(rng: np.random.Generator, dtype: str) -> None:
    x = (rng.standard_normal((64, 999)) * 10.0 ** rng.uniform(-4, 4, (64, 999))).astype(np.float32)

    values, _ = narrow(jnp.asarray(x), jnp.dtype(dtype))

    name = getattr(torch, dtype)
    most = torch.finfo(name).max
    given = torch.from_numpy(x)
    scaled = (given * most / given.abs().amax(-1, keepdim=True)).clamp(-most, most)
    assert np.array_equal(scaled.to(name).float().numpy(), wide(values))


SIZES = {
    "some experts have none": [5, 0, 40, 1, 0, 33],
    "one has nearly all": [0, 0, 300, 1, 99, 0],
    "one row": [0, 1, 0],
    "one expert": [77],
    "borders of tiles": [32, 64, 32],
}
KINDS = ("float32", "bfloat16", "int8", "float8_e4m3fn")


@pytest.mark.parametrize(
    ("name", "kind"),
    [*((name, "float32") for name in SIZES), *(("one has nearly all", kind) for kind in KINDS[1:])],
)
def test_grouped_products_agree_with_float64(
    rng: np.random.Generator, name: str, kind: str
) -> None:
    sizes, dtype = SIZES[name], "float32" if kind == "float32" else "bfloat16"
    inner, outputs = int(rng.integers(1, 2200)), int(rng.integers(1, 400))
    rows, experts = sum(sizes), len(sizes)
    x = jnp.asarray(rng.standard_normal((rows, inner)), jnp.dtype(dtype))
    weight = draw_weight(rng, (experts, inner, outputs), kind)
    scale = None
    if kind != dtype:
        scale = jnp.asarray(rng.random((experts, 1, outputs)) + 0.5, jnp.float32)
    shape = matmul_shape(
        inner,
        outputs,
        CHIPS[str(rng.choice([*CHIPS]))],
        num_rows=max(1, rows // experts),
        dtype=dtype,
        weight_dtype=kind,
    )
    borders = np.cumsum([0, *sizes])
    parts = [
        wide(x)[borders[e] : borders[e + 1]]
        @ wide(weight[e])
        * (1 if scale is None else wide(scale[e]))
        for e in range(experts)
    ]

    how = strictly if name == "some experts have none" else quickly
    got = how(lambda interpret: grouped(x, weight, sizes, scale, shape, interpret))

    assert error(got, np.concatenate(parts)) < (FLOAT32 if dtype == "float32" else BFLOAT16)


def grouped(
    x: jax.Array,
    weight: jax.Array,
    sizes: list[int],
    scale: jax.Array | None,
    shape: MatmulShape,
    interpret: Any,
) -> jax.Array:
    return grouped_matmul(
        x,
        padded(weight, *shape.packed),
        jnp.asarray(sizes, jnp.int32),
        None if scale is None else padded(scale, 1, shape.packed[1]),
        shape=shape,
        interpret=interpret,
    )
