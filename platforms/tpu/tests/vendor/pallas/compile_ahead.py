"""Compile every kernel for a TPU that need not be here, and print as JSON what came of each.

Usage: compile_ahead.py GENERATION [--hot] [--vmem BYTES].  `--hot`: few kernels, those of a decode
step and one with a prompt.  `--vmem`: let a kernel have so much fast memory instead of what its
shape says it takes.  A program of its own: the compiler ends the process on a topology that it does
not know.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")  # it is no device that is shared
os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")  # asks the network which TPU this machine is
os.environ.setdefault("TPU_ACCELERATOR_TYPE", "v6e-1")
os.environ.setdefault("TPU_WORKER_HOSTNAMES", "localhost")

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import topologies

from allmetal.platform.specs import AttentionSpec
from allmetal_tpu.pallas.chips import CHIPS, Chip
from allmetal_tpu.pallas.jit.attention import ragged_paged_attention
from allmetal_tpu.pallas.jit.grouped_matmul import grouped_matmul
from allmetal_tpu.pallas.jit.matmul import quantised_matmul
from allmetal_tpu.pallas.shapes import attention_shape, matmul_shape

TOPOLOGIES = {"v5e": "v5e:2x2", "v5p": "v5p:2x2x1", "v6e": "v6e:2x2", "v7x": "tpu7x:2x2x1"}
CACHE_BYTES = 1 << 30
Array = tuple[Sequence[int], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    name: str
    call: Callable[..., jax.Array]
    arguments: tuple[Array, ...]
    vmem: int
    cache_bytes: int = 0


LLAMA = AttentionSpec(
    dtype="bfloat16",
    kv_dtype="bfloat16",
    num_heads=32,
    num_kv_heads=8,
    head_dim=128,
    block_size=16,
    scale=128**-0.5,
)
ATTENTIONS = {
    "llama": LLAMA,
    "head_dim 64": replace(LLAMA, head_dim=64),
    "head_dim 80": replace(LLAMA, head_dim=80),
    "head_dim 96": replace(LLAMA, head_dim=96, block_size=32),
    "gemma": replace(LLAMA, head_dim=256, num_heads=4, num_kv_heads=1, window=512, soft_cap=50.0),
    "seven heads a group": replace(LLAMA, num_heads=28, num_kv_heads=4),
    "sinks": replace(LLAMA, num_heads=64, head_dim=64, sinks=True, window=128),
    "every head its own": replace(LLAMA, num_kv_heads=32, block_size=64),
    "float8 keys": replace(LLAMA, kv_dtype="float8_e4m3fn", block_size=32),
    "wide float8 keys": replace(LLAMA, kv_dtype="float8_e5m2", block_size=128),
    "float32": replace(LLAMA, dtype="float32", kv_dtype="float32"),
}
WEIGHTS = [
    ("int8", 0, None),
    ("int8", 128, None),
    ("int8", 32, None),
    ("int8", 0, "int8"),
    ("int8", 128, "int8"),
    ("float8_e4m3fn", 0, None),
    ("float8_e4m3fn", 0, "float8_e4m3fn"),
    ("float8_e5m2", 0, None),
]


def attentions(chip: Chip, vmem: int | None) -> Iterator[Case]:
    for name, spec in ATTENTIONS.items():
        for single in (True, False):
            tokens, seqs, pages = (64, 64, 64) if single else (512, 32, 128)
            shape = attention_shape(spec, chip, num_tokens=tokens, num_seqs=seqs, single=single)
            shape = replace(shape, vmem_limit=vmem or shape.vmem_bytes)
            block = (shape.parts, spec.num_kv_heads, spec.block_size, shape.width)
            cache = (CACHE_BYTES // (int(np.prod(block)) * shape.kv_bytes), *block)
            ints = "int32"
            yield Case(
                name=f"attention, {name}, {'decode' if single else 'mixed'}",
                call=partial(ragged_paged_attention, shape=shape),
                arguments=(
                    ((tokens, spec.num_heads, spec.head_dim), spec.dtype),
                    (cache, spec.kv_dtype),
                    ((seqs,), ints),
                    ((seqs + 1,), ints),
                    ((seqs, pages), ints),
                    *([((spec.num_heads,), "float32")] if spec.sinks else []),
                ),
                vmem=shape.vmem_limit,
                cache_bytes=CACHE_BYTES,
            )


def products(chip: Chip, vmem: int | None) -> Iterator[Case]:
    for weight, group, act in WEIGHTS:
        for tokens, inner, outputs in ((8, 4096, 14336), (1024, 11008, 4096)):
            shape = matmul_shape(
                inner,
                outputs,
                chip,
                num_rows=tokens,
                dtype="bfloat16",
                weight_dtype=weight,
                group=group,
                act_dtype=act,
            )
            shape = replace(shape, vmem_limit=vmem or shape.vmem_bytes)
            scales = shape.packed[0] // group if group else 1
            yield Case(
                name=f"product, {weight}, groups of {group}, {act or 'weight only'}, {tokens}",
                call=partial(quantised_matmul, shape=shape),
                arguments=(
                    ((tokens, inner), "bfloat16"),
                    (shape.packed, weight),
                    ((scales, shape.packed[1]), "float32"),
                ),
                vmem=shape.vmem_limit,
            )


def grouped_products(chip: Chip, vmem: int | None) -> Iterator[Case]:
    for kind in ("bfloat16", "float32", "int8", "float8_e4m3fn"):
        dtype = "float32" if kind == "float32" else "bfloat16"
        for rows, experts in ((64, 8), (4096, 64)):
            inner, outputs = 2880, 1536
            shape = matmul_shape(
                inner,
                outputs,
                chip,
                num_rows=rows // experts,
                dtype=dtype,
                weight_dtype=kind,
            )
            shape = replace(shape, vmem_limit=vmem or shape.vmem_bytes)
            scale = [] if kind == dtype else [((experts, 1, shape.packed[1]), "float32")]
            yield Case(
                name=f"grouped product, {kind}, {rows} rows of {experts} experts",
                call=partial(grouped_matmul, shape=shape),
                arguments=(
                    ((rows, inner), dtype),
                    ((experts, *shape.packed), kind),
                    ((experts,), "int32"),
                    *scale,
                ),
                vmem=shape.vmem_limit,
            )


HOT = (
    "attention, llama, decode",
    "attention, llama, mixed",
    "product, int8, groups of 0, weight only, 8",
    "grouped product, bfloat16, 64 rows of 8 experts",
)


def compiled(case: Case, device: jax.Device) -> dict[str, object]:
    here = jax.sharding.SingleDeviceSharding(device)
    arguments = [
        jax.ShapeDtypeStruct(tuple(shape), jnp.dtype(dtype), sharding=here)
        for shape, dtype in case.arguments
    ]
    begun, said = time.monotonic(), ""
    memory = None
    try:
        lowered = jax.jit(case.call).trace(*arguments).lower(lowering_platforms=("tpu",))
        program = lowered.compile()
        assert "tpu_custom_call" in program.as_text()
        memory = program.memory_analysis()
    except Exception as error:  # any refusal of the compiler is an answer
        said = f"{type(error).__name__}: {error}"[:500]
    return {
        "name": case.name,
        "error": said,
        "seconds": round(time.monotonic() - begun, 2),
        "vmem": case.vmem,
        "cache_bytes": case.cache_bytes,
        "temporary_bytes": memory.temp_size_in_bytes if memory else 0,
        "code_bytes": memory.generated_code_size_in_bytes if memory else 0,
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("generation", choices=TOPOLOGIES)
    parser.add_argument("--hot", action="store_true")
    parser.add_argument("--vmem", type=int)
    options = parser.parse_args()
    chip = CHIPS[options.generation]
    topology = topologies.get_topology_desc(
        topology_name=TOPOLOGIES[options.generation], platform="tpu"
    )
    device = topology.devices[0]
    made = [make(chip, options.vmem) for make in (attentions, products, grouped_products)]
    cases = [case for some in made for case in some]
    if options.hot:
        cases = [case for case in cases if case.name in HOT]
    found = {"device": device.device_kind, "kernels": [compiled(case, device) for case in cases]}
    json.dump(found, sys.stdout, indent=1)


if __name__ == "__main__":
    main()
