"""What the native kernels have in common."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from allmetal.platform.contract import Support, Supported, Unsupported
from allmetal_cpu.native import library

SpecT = TypeVar("SpecT", contravariant=True)
OpT = TypeVar("OpT", covariant=True)


@dataclass(frozen=True, slots=True)
class NativeKernel(Generic[SpecT, OpT]):
    """`refuse` gives the reason a spec cannot be done, or None."""

    refuse: Callable[[SpecT], str | None]
    make: Callable[[SpecT, library.Library], OpT]
    name: str = "native"

    def supports(self, spec: SpecT) -> Support:
        loaded = library.load()
        if isinstance(loaded, Unsupported):
            return loaded
        reason = self.refuse(spec)
        return Supported(rank=10) if reason is None else Unsupported(reason)

    def build(self, spec: SpecT) -> OpT:
        loaded = library.load()
        assert isinstance(loaded, library.Library)
        return self.make(spec, loaded)


def refuse_dtype(dtype: str) -> str | None:
    if dtype in library.DTYPES:
        return None
    return f"computes in {' and '.join(library.DTYPES)}, not {dtype}"


def refuse_kv_dtype(dtype: str, kv_dtype: str) -> str | None:
    if kv_dtype == dtype:
        return None
    return f"keeps keys and values in {dtype}, not {kv_dtype}"
