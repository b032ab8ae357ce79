"""The package vllm-xpu-kernels: whether it is here, and its operators in torch's dispatcher."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch

from allmetal.errors import PlatformError

DTYPES = ("bfloat16", "float16")
_LIBRARIES = ("_C", "_moe_C", "_xpu_C", "_vllm_fa2_C")


def refuse(dtype: str) -> str | None:
    """Why it is not asked, or None."""
    if dtype not in DTYPES:
        return f"dtype must be one of {', '.join(DTYPES)}, not {dtype}"
    if find_spec("vllm_xpu_kernels") is None:
        return "the package vllm-xpu-kernels is not installed"
    return None


def operator(library: str, name: str) -> Callable[..., Any]:
    """`torch.ops.library.name`, by whichever package defined it.

    Raises PlatformError where the package's library cannot be loaded, or has no such operator.
    """
    assert library in _LIBRARIES
    space = getattr(torch.ops, library)
    if not hasattr(space, name):
        try:
            import_module(f"vllm_xpu_kernels.{library}")
        except ImportError as error:  # the loader's words, e.g. that SYCL's library is not there
            raise _broken(f"{library}: {error}") from error
    found: Callable[..., Any] | None = getattr(space, name, None)
    if found is None:
        raise _broken(f"{library} has no {name}")
    return found


def _broken(why: str) -> PlatformError:
    return PlatformError(
        f"vllm-xpu-kernels is installed and cannot be used: {why}",
        hint="install the version made for this torch, or: pip uninstall vllm-xpu-kernels",
    )
