"""What these kernels have in common."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch

from allmetal.platform.contract import Kernel, Support, Supported, Unsupported

SpecT = TypeVar("SpecT", contravariant=True)
OpT = TypeVar("OpT", covariant=True)

RANK = 100
"""Behind kernels written for the device by hand, before the reference."""
FLOATS = ("float32", "bfloat16", "float16")


@dataclass(frozen=True, slots=True)
class XlaKernel(Generic[SpecT, OpT]):
    """`refuse` gives the reason a spec cannot be done, or None."""

    name: str
    refuse: Callable[[SpecT], str | None]
    make: Callable[[SpecT], OpT]

    def supports(self, spec: SpecT) -> Support:
        reason = self.refuse(spec)
        return Supported(RANK) if reason is None else Unsupported(reason)

    def build(self, spec: SpecT) -> OpT:
        return self.make(spec)


def as_reference(name: str, reference: Kernel[SpecT, OpT]) -> XlaKernel[SpecT, OpT]:
    """For families whose reference is what XLA wants already: it becomes one loop over the data,
    fused with what is around it."""

    def refuse(spec: SpecT) -> str | None:
        answer = reference.supports(spec)
        if isinstance(answer, Unsupported):
            return answer.reason
        return refuse_dtype(getattr(spec, "dtype", "float32"))

    return XlaKernel(name, refuse, reference.build)


def refuse_dtype(name: str) -> str | None:
    return None if name in FLOATS else f"dtype must be one of {', '.join(FLOATS)}, not {name}"


def running_sum(x: torch.Tensor) -> torch.Tensor:
    """x [B, N] -> its inclusive sums along N, by doubling: XLA's own scan walks element by element,
    and not every backend has it.

    The order of additions depends on N alone, so equal rows have equal sums.
    """
    rows, length = x.shape
    width = 1 << max(0, (length - 1).bit_length() + 1) // 2
    padded = torch.nn.functional.pad(x, (0, -length % width))
    parts = _doubled(padded.view(rows, -1, width))
    before = torch.nn.functional.pad(_doubled(parts[:, :, -1])[:, :-1], (1, 0))
    return (parts + before[:, :, None]).reshape(rows, -1)[:, :length]


def _doubled(x: torch.Tensor) -> torch.Tensor:
    step = 1
    while step < x.shape[-1]:
        x = x + torch.nn.functional.pad(x[..., :-step], (step, 0))
        step *= 2
    return x
