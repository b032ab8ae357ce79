"""What differs between the generations of chips, and the sizes that follow from it.

Figures are one core's, from `jax.experimental.pallas.tpu.get_tpu_info` (JAX 0.10) and Google's
published tables; a test holds them against the installed JAX.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

_MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Chip:
    """`vmem`: bytes next to the core.  `mxu`: side of the matrix unit.  `cores` that one program
    runs on.  `int8`, `float8`: whether the matrix unit multiplies them itself; else they are
    widened, and only their smaller size in memory is won.  `bandwidth`: bytes a second from HBM,
    `operations`: of bfloat16 a second.

    `attention_rows`: queries times heads an item is filled up to.  `attention_keys`: copied at
    once, and `attention_buffer` the bytes that two such copies may take.  `tile_m`, `tile_n`,
    `tile_k`: of a matrix product with many rows.
    """

    name: str
    vmem: int
    mxu: int
    cores: int
    int8: bool
    float8: bool
    bandwidth: float
    operations: float
    attention_rows: int
    attention_keys: int
    attention_buffer: int
    tile_m: int
    tile_n: int
    tile_k: int

    @property
    def vmem_limit(self) -> int:
        """For one kernel; the rest is the compiler's, for what lies around it."""
        return self.vmem * 3 // 4


CHIPS: Mapping[str, Chip] = {
    # 820 GB/s over 197 TFLOP/s: 240 operations a byte.  128 rows fill the unit.
    "v5e": Chip(
        name="v5e",
        vmem=128 * _MIB,
        mxu=128,
        cores=1,
        int8=True,
        float8=False,
        bandwidth=8.2e11,
        operations=1.97e14,
        attention_rows=128,
        attention_keys=512,
        attention_buffer=16 * _MIB,
        tile_m=256,
        tile_n=512,
        tile_k=2048,
    ),
    # Two cores work as one, and half of the others' fast memory is next to each.
    "v5p": Chip(
        name="v5p",
        vmem=64 * _MIB,
        mxu=128,
        cores=2,
        int8=True,
        float8=False,
        bandwidth=1.23e12,
        operations=2.3e14,
        attention_rows=128,
        attention_keys=512,
        attention_buffer=8 * _MIB,
        tile_m=256,
        tile_n=512,
        tile_k=2048,
    ),
    # Units of twice the side, and 560 operations a byte: tiles twice as large each way.
    "v6e": Chip(
        name="v6e",
        vmem=128 * _MIB,
        mxu=256,
        cores=1,
        int8=True,
        float8=False,
        bandwidth=1.64e12,
        operations=9.2e14,
        attention_rows=256,
        attention_keys=512,
        attention_buffer=16 * _MIB,
        tile_m=512,
        tile_n=1024,
        tile_k=2048,
    ),
    # A device is one core of two.  Bytes come so fast (3.7 TB/s a core) that a copy must be longer
    # to pay for its start.  8-bit floats instead of 8-bit integers.
    "v7x": Chip(
        name="v7x",
        vmem=64 * _MIB,
        mxu=256,
        cores=1,
        int8=False,
        float8=True,
        bandwidth=3.7e12,
        operations=1.155e15,
        attention_rows=256,
        attention_keys=1024,
        attention_buffer=16 * _MIB,
        tile_m=512,
        tile_n=1024,
        tile_k=2048,
    ),
}
