"""Attention, interpreted, against float64."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from interpreting import BFLOAT16, FLOAT32, error, quickly, strictly

from allmetal.platform.specs import AttentionSpec
from allmetal_tpu.pallas.chips import CHIPS
from allmetal_tpu.pallas.jit.attention import ragged_paged_attention
from allmetal_tpu.pallas.shapes import attention_shape

pytestmark = pytest.mark.timeout(400)  # under load; seconds otherwise

BASE = AttentionSpec(
    dtype="float32",
    kv_dtype="float32",
    num_heads=8,
    num_kv_heads=2,
    head_dim=128,
    block_size=16,
    scale=128**-0.5,
)
SPECS = {
    "llama": BASE,
    "one key-value head": replace(BASE, num_kv_heads=1, head_dim=256),
    "seven heads a group, capped": replace(BASE, num_heads=14, soft_cap=5.0, head_dim=80),
    "every head its own": replace(BASE, num_heads=3, num_kv_heads=3, head_dim=192),
    "a window": replace(BASE, window=21),
    "keys beside values": replace(BASE, head_dim=64, window=100),
    "a narrow head": replace(BASE, head_dim=40),
    "sinks": replace(BASE, sinks=True, head_dim=64, window=37),
    "long pages": replace(BASE, block_size=64),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    q: np.ndarray
    keys: list[np.ndarray]
    values: list[np.ndarray]
    cache: np.ndarray
    lens: Sequence[int]
    new: Sequence[int]
    table: np.ndarray
    sinks: np.ndarray | None


def draw(
    rng: np.random.Generator, spec: AttentionSpec, new: Sequence[int], old: Sequence[int]
) -> Problem:
    """`new` tokens after `old` ones.  What nobody may read is NaN, and the table beyond a
    sequence's pages no block at all."""
    lens = [a + b for a, b in zip(new, old, strict=True)]
    size, heads, dim = spec.block_size, spec.num_kv_heads, spec.head_dim
    pages = [-(-n // size) for n in lens]
    table = rng.integers(-(10**6), 10**6, (len(lens), max(pages) + 3))
    blocks = iter(rng.permutation(sum(pages) + 5))
    cache = np.full((sum(pages) + 5, 2, heads, size, dim), np.nan)
    keys, values = [], []
    for row, n in enumerate(lens):
        keys.append(rng.standard_normal((heads, n, dim)))
        values.append(rng.standard_normal((heads, n, dim)))
        for page in range(pages[row]):
            block = table[row, page] = next(blocks)
            here = slice(page * size, min((page + 1) * size, n))
            cache[block, 0, :, : here.stop - here.start] = keys[row][:, here]
            cache[block, 1, :, : here.stop - here.start] = values[row][:, here]
    sinks = rng.standard_normal(spec.num_heads) if spec.sinks else None
    q = rng.standard_normal((sum(new), spec.num_heads, dim))
    return Problem(
        q=q, keys=keys, values=values, cache=cache, lens=lens, new=new, table=table, sinks=sinks
    )


def expected(spec: AttentionSpec, problem: Problem) -> np.ndarray:
    out = []
    queries = iter(problem.q)
    for row, (n, length) in enumerate(zip(problem.new, problem.lens, strict=True)):
        for at in range(length - n, length):
            seen = slice(0 if spec.window is None else max(0, at + 1 - spec.window), at + 1)
            k, v = problem.keys[row][:, seen], problem.values[row][:, seen]
            q = next(queries).reshape(spec.num_kv_heads, -1, spec.head_dim)
            scores = np.einsum("kgd,ksd->kgs", q, k) * spec.scale
            if spec.soft_cap is not None:
                scores = spec.soft_cap * np.tanh(scores / spec.soft_cap)
            weights = np.exp(scores)
            total = weights.sum(-1, keepdims=True)
            if problem.sinks is not None:
                total += np.exp(problem.sinks).reshape(spec.num_kv_heads, -1, 1)
            out.append(np.einsum("kgs,ksd->kgd", weights / total, v).reshape(-1, spec.head_dim))
    return np.stack(out)


def stored(cache: np.ndarray, dtype: Any) -> jax.Array:
    """[N, 2, K, page, D] as the kernel keeps it: whole lanes, small heads side by side."""
    dim = cache.shape[-1]
    if 2 * dim <= 128:
        cache = np.concatenate([cache[:, :1], cache[:, 1:]], axis=-1)
    beside = -cache.shape[-1] % 128
    written = ~np.isnan(cache[..., :1])
    zeros = np.where(written, 0.0, np.nan) * np.ones(beside)
    return jnp.asarray(np.concatenate([cache, zeros], axis=-1), dtype)


def run(
    spec: AttentionSpec, problem: Problem, chip: str, *, single: bool = False, padding: int = 0
) -> Any:
    """A function of how to interpret."""
    dtype, kv_dtype = jnp.dtype(spec.dtype), jnp.dtype(spec.kv_dtype)
    tokens, seqs = sum(problem.new), len(problem.new)
    shape = attention_shape(
        spec, CHIPS[chip], num_tokens=tokens + padding, num_seqs=seqs, single=single
    )
    # Tokens behind the last sequence, as a step of a fixed size has them.
    q = jnp.pad(jnp.asarray(problem.q, dtype), ((0, padding), (0, 0), (0, 0)))
    starts = jnp.asarray(np.cumsum([0, *problem.new]), jnp.int32)
    lens, table = jnp.asarray(problem.lens, jnp.int32), jnp.asarray(problem.table, jnp.int32)
    sinks = None if problem.sinks is None else jnp.asarray(problem.sinks, jnp.float32)
    cache = stored(problem.cache, kv_dtype)

    def call(interpret: Any) -> jax.Array:
        out = ragged_paged_attention(
            q, cache, lens, starts, table, sinks, shape=shape, interpret=interpret
        )
        assert not out[tokens:].any()
        return out[:tokens]

    return call


@pytest.mark.parametrize("name", SPECS)
def test_mixed_batches_agree_with_float64(rng: np.random.Generator, name: str) -> None:
    new = [1, *map(int, rng.integers(2, 90, 2)), 1, 1]
    problem = draw(rng, SPECS[name], new, [int(n) for n in rng.integers(0, 700, len(new))])

    got = quickly(run(SPECS[name], problem, str(rng.choice([*CHIPS])), padding=7))

    assert error(got, expected(SPECS[name], problem)) < FLOAT32


@pytest.mark.parametrize("name", ["llama", "seven heads a group, capped", "sinks"])
def test_decode_steps_agree_with_float64(rng: np.random.Generator, name: str) -> None:
    new = [1] * int(rng.integers(3, 9))
    problem = draw(rng, SPECS[name], new, [int(n) for n in rng.integers(0, 1100, len(new))])

    got = quickly(run(SPECS[name], problem, str(rng.choice([*CHIPS])), single=True))

    assert error(got, expected(SPECS[name], problem)) < FLOAT32


@pytest.mark.parametrize("chip", ["v5e", "v5p"])
def test_no_memory_is_read_before_it_is_written_and_no_copy_races(
    rng: np.random.Generator, chip: str
) -> None:
    spec = replace(BASE, window=600, num_heads=4)
    problem = draw(rng, spec, [1, 70, 1, 5, 1], [0, 1200, 900, 3, 40])

    got = strictly(run(spec, problem, chip))

    assert error(got, expected(spec, problem)) < FLOAT32


@pytest.mark.parametrize("kv_dtype", ["bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_narrow_types_lose_what_rounding_loses(rng: np.random.Generator, kv_dtype: str) -> None:
    spec = replace(BASE, dtype="bfloat16", kv_dtype=kv_dtype, block_size=32)
    problem = draw(rng, spec, [1, 40, 1], [300, 0, 37])
    rounded = replace(
        problem,
        q=as_kept(problem.q, "bfloat16"),
        keys=[as_kept(k, kv_dtype) for k in problem.keys],
        values=[as_kept(v, kv_dtype) for v in problem.values],
    )

    got = quickly(run(spec, problem, "v7x"))

    assert error(got, expected(spec, rounded)) < BFLOAT16


def as_kept(x: np.ndarray, dtype: str) -> np.ndarray:
    return np.asarray(jnp.asarray(x, jnp.dtype(dtype)).astype(jnp.float32)).astype(np.float64)


def test_sequences_without_new_tokens_are_passed_over(rng: np.random.Generator) -> None:
    problem = draw(rng, BASE, [0, 3, 0, 1, 0], [20, 40, 0, 5, 1])

    got = quickly(run(BASE, problem, "v6e", padding=3))

    assert error(got, expected(BASE, problem)) < FLOAT32


def test_a_table_larger_than_the_scalar_memory_is_split(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = draw(rng, BASE, [1, 20, 1], [40, 9, 5])
    most = 4 * 2 * problem.table.shape[1]  # two sequences in a call
    monkeypatch.setattr("allmetal_tpu.pallas.jit.attention._TABLE_BYTES", most)

    got = quickly(run(BASE, problem, "v5e", padding=2))

    assert error(got, expected(BASE, problem)) < FLOAT32
