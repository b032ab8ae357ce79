"""What kernels must know of the machine they are built for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

FLOAT_DTYPES = ("float32", "bfloat16", "float16")


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionTile:
    """How attention is cut where the usual rule does not suit a device: `m` rows (of few rows, the
    most there are) and `n` keys, for heads of up to `head_dim` channels in types of two bytes."""

    head_dim: int
    m: int
    n: int
    num_warps: int
    num_stages: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """`num_cores`: independent processors (multiprocessors, compute units), asked for when a
    kernel is built and not before, since the answer may open the device.  `shared_memory`: bytes
    one program may have.  `dot_rows`: rows of the matrix unit's own instruction; 64 where it
    works by itself from shared memory.  `early`: a launch may begin before the one ahead has ended.
    `cache_dtypes`: what keys and values may be kept in.  `fnuz`: its instructions take 8-bit floats
    whose exponents are biased by one more, so that a code of the usual formats means half as much.
    `few_rows`, `many_rows`: tiles of attention by head size, ascending; see `ops.attention_tiles`.
    """

    num_cores: Callable[[], int]
    shared_memory: int
    dot_rows: int = 16
    early: bool = False
    dtypes: tuple[str, ...] = FLOAT_DTYPES
    cache_dtypes: tuple[str, ...] = FLOAT_DTYPES
    fnuz: bool = False
    few_rows: tuple[AttentionTile, ...] = ()
    many_rows: tuple[AttentionTile, ...] = ()

    @property
    def launch_options(self) -> dict[str, bool]:
        """What every launch says, and its kernel's EARLY with it."""
        return {"EARLY": True, "launch_pdl": True} if self.early else {"EARLY": False}


def refuse_dtype(target: Target, dtype: str) -> str | None:
    if dtype in target.dtypes:
        return None
    return f"dtype must be one of {', '.join(target.dtypes)} on this device, not {dtype}"


def refuse_cache_dtype(target: Target, kv_dtype: str) -> str | None:
    if kv_dtype in target.cache_dtypes:
        return None
    return (
        f"kv_dtype must be one of {', '.join(target.cache_dtypes)} on this device, not {kv_dtype}"
    )


FNUZ = {"float8_e4m3fn": "float8_e4m3fnuz", "float8_e5m2": "float8_e5m2fnuz"}
"""The format in which a code means half of what it means in the usual one.  Zero has no sign there:
its code with one is what is no number."""


def halved(target: Target, kv_dtype: str) -> str | None:
    """The type by which the device reads codes of `kv_dtype`, as half their value; None: its own.

    Source: the CDNA 3 instruction set guide; exponents are biased by 8 instead of 7, 16 of 15.
    """
    return FNUZ.get(kv_dtype) if target.fnuz else None
