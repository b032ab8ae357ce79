"""A function in JAX as an op on torch tensors, by TorchTPU's `torch.tpu.pallas.jax_op`.

It exports the function for the shapes of each call, once a shape, and hands the program to the
device's own compiler, by itself or within what `torch.compile(backend="tpu")` makes.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from typing import Any

from allmetal_tpu.pallas.chips import Chip

_numbers = itertools.count()


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """`interpret`: the kernels become plain XLA, which any device runs, far slower."""

    chip: Chip
    interpret: bool = False

    def refuse(self) -> str | None:
        """Why no kernel can be called here, or None."""
        for package in ("jax", "torch_tpu"):
            if not _is_installed(package):
                return (
                    f'the Python package {package} is missing: pip install "allmetal-tpu[pallas]"'
                )
        return None


@cache
def _is_installed(package: str) -> bool:
    return find_spec(package) is not None


def torch_op(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` takes and returns `jax.Array`, and says so in its annotations.

    torch knows an op by its name, which no two may share.
    """
    import torch

    unique = f"allmetal_tpu::{name}_{next(_numbers)}"
    made: Callable[..., Any] = torch.tpu.pallas.jax_op(unique, function)  # type: ignore[attr-defined]
    return made
