"""What kernels must know of the machine they are built for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

FLOAT_DTYPES = ("float32", "bfloat16", "float16")


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """`num_cores`: independent processors (multiprocessors, compute units), asked for when a
    kernel is built and not before, since the answer may open the device.  `shared_memory`: bytes
    one program may have.  `dot_rows`: rows of the matrix unit's own instruction; 64 where it
    works by itself from shared memory.  `early`: a launch may begin before the one ahead has ended.
    `cache_dtypes`: what keys and values may be kept in.
    """

    num_cores: Callable[[], int]
    shared_memory: int
    dot_rows: int = 16
    early: bool = False
    dtypes: tuple[str, ...] = FLOAT_DTYPES
    cache_dtypes: tuple[str, ...] = FLOAT_DTYPES

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
