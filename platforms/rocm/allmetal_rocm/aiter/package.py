"""The package amd-aiter: whether it is here, and its functions, whatever building them raises."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from allmetal.errors import PlatformError

ARCHS = ("gfx942", "gfx950")
"""Those it is tuned for: its tables of tile sizes name no other.  Source: its `arch_info`."""
DTYPES = ("bfloat16", "float16")


def refuse(arch: str, dtype: str) -> str | None:
    """Why it is not asked, or None."""
    if arch not in ARCHS:
        return f"aiter is tuned for {' and '.join(ARCHS)}, not {arch or 'an unknown architecture'}"
    if dtype not in DTYPES:
        return f"dtype must be one of {', '.join(DTYPES)}, not {dtype}"
    if not installed():
        return "the package amd-aiter is not installed"
    return None


def installed() -> bool:
    """Told by what is in it: another package on the index has the same name.  Imports nothing."""
    spec = find_spec("aiter")
    folders = spec.submodule_search_locations if spec is not None else None
    return any((Path(folder) / "ops" / "triton").is_dir() for folder in folders or ())


def member(module: str, name: str) -> Any:
    """Raises PlatformError where the package cannot be imported."""
    try:
        return getattr(import_module(module), name)
    except BaseException as error:
        raise _said(error, f"aiter is installed and cannot be used: {module}.{name}") from error


def function(module: str, name: str) -> Callable[..., Any]:
    """`name` of `aiter.module`, made ready to say what is wrong with it.

    Its HIP kernels are compiled by their first call, and what fails there ends the process: it
    raises SystemExit.  The engine's first step is a rehearsal, so that comes at the start.
    """
    return _Built(member(module, name), name)


class _Built:
    """A function that has not been called yet is guarded, later ones are not."""

    def __init__(self, call: Callable[..., Any], name: str) -> None:
        self._call, self._name = call, name
        self._ready = False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._ready:
            return self._call(*args, **kwargs)
        try:
            made = self._call(*args, **kwargs)
        except BaseException as error:
            raise _said(error, f"aiter's {self._name} cannot be built or called") from error
        self._ready = True
        return made


def _said(error: BaseException, what: str) -> BaseException:
    """An error of ours for whatever it was; an interruption stays what it is."""
    if isinstance(error, KeyboardInterrupt | PlatformError):
        return error
    lines = str(error).strip().splitlines() or ["no reason given"]
    return PlatformError(
        f"{what}: {type(error).__name__}: {lines[-1]}",
        hint="pip uninstall amd-aiter, or name other kernels: --kernel FAMILY=NAME",
    )
