"""Find and load the C++ library, once a process, and say why where it cannot be had."""

from __future__ import annotations

import ctypes
from ctypes import c_float, c_int, c_int64, c_void_p
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch

from allmetal.platform.contract import Unsupported
from allmetal_cpu.native.find import find
from allmetal_cpu.native.function import Function, Program

VERSION = 4
"""Of the interface; raised when a function's parameters change."""

DTYPES = {"bfloat16": "bf16", "float32": "f32"}
"""What the kernels compute in, and the suffix of their names."""

_SIGNATURES = {
    "linear": (*[c_void_p] * 4, *[c_int64] * 3),
    "linear_int8": (*[c_void_p] * 5, *[c_int64] * 4),
    "linear_blocks": (*[c_void_p] * 4, *[c_int64] * 3, c_int),
    "linear_panels": (*[c_void_p] * 5, *[c_int64] * 3, c_int, c_int),
    "attention": (*[c_void_p] * 4, c_int64, *[c_void_p] * 3, *[c_int64] * 6, c_float, c_float),
    "attention_input": (*[c_void_p] * 8, *[c_int64] * 6, c_int, c_int, c_float, c_float),
    "rms_norm": (*[c_void_p] * 5, *[c_int64] * 2, c_float, c_float, c_int),
    "sampling": (*[c_void_p] * 7, *[c_int64] * 2),
    "gated_activation": (*[c_void_p] * 2, *[c_int64] * 2, c_int),
    "moe": (*[c_void_p] * 7, c_float, c_int, c_int64),
    "add": (*[c_void_p] * 3, c_int64),
    "scale": (*[c_void_p] * 2, c_float, c_int64),
    "decode_rows": (*[c_void_p] * 3, *[c_int64] * 2, c_int),
    "widen": (*[c_void_p] * 2, c_int64),
    "narrow": (*[c_void_p] * 2, c_int64),
}

_UNTYPED = {
    "copy_rows": (*[c_void_p] * 2, *[c_int64] * 4),
    "gather_rows": (*[c_void_p] * 3, *[c_int64] * 2),
    "read_state": (*[c_void_p] * 8, *[c_int64] * 6),
    "write_state": (*[c_void_p] * 5, *[c_int64] * 3),
}

_ONLY = {
    "sampling": ("float32",),
    **dict.fromkeys(("linear_panels", "widen", "narrow"), ("bfloat16",)),
}
"""The dtypes of kernels that are not there for all."""

# A call that takes microseconds keeps the interpreter's lock: giving it up costs as much, and
# another thread may hold it for milliseconds.
_SHORT = {
    *("attention_input", "rms_norm", "gated_activation", "add", "scale"),
    *("decode_rows", "widen", "narrow"),
    *_UNTYPED,
}


@dataclass(frozen=True, slots=True)
class Library:
    """`isa` is the instruction set whose kernels this CPU was given."""

    isa: str
    long: ctypes.CDLL
    short: ctypes.PyDLL

    def function(self, name: str, dtype: str | None = None) -> Function:
        """The kernel `name` for tensors of `dtype`; it takes addresses and numbers."""
        handle = self.short if name in _SHORT else self.long
        full = name if dtype is None else f"{name}_{DTYPES[dtype]}"
        signature = _UNTYPED[name] if dtype is None else _SIGNATURES[name]
        return Function(full, handle[f"am_{full}"], signature)

    def program(self) -> Program:
        """An empty one."""
        return Program(self.long)


@cache
def load() -> Library | Unsupported:
    path = find()
    if isinstance(path, Unsupported):
        return path
    try:
        return open_library(path)
    except OSError as error:
        return Unsupported(f"native library not loaded: {error}")


def open_library(path: Path) -> Library | Unsupported:
    """Raises OSError where the loader refuses it."""
    long, short = ctypes.CDLL(str(path)), ctypes.PyDLL(str(path))
    try:
        found = long.am_version()
    except AttributeError:
        return Unsupported(f"{path} is no library of these kernels: reinstall allmetal-cpu")
    if found != VERSION:
        return Unsupported(
            f"native library {path} is of version {found}, not {VERSION}: reinstall allmetal-cpu"
        )
    if absent := [name for name in _names() if not hasattr(long, name)]:
        return Unsupported(f"native library {path} lacks {absent[0]}: reinstall allmetal-cpu")
    _declare(long)
    long.am_set_threads(torch.get_num_threads())
    return Library(long.am_isa().decode(), long, short)


def _names() -> list[str]:
    """Of all that is called."""
    others = ("isa", "limit_isa", "set_threads", "panel_bytes", "pack_panels")
    programs = [f"program_{verb}" for verb in ("new", "delete", "add", "run")]
    typed = [f"{name}_{DTYPES[d]}" for name in _SIGNATURES for d in _ONLY.get(name, DTYPES)]
    return [f"am_{name}" for name in (*others, *programs, *_UNTYPED, *typed)]


def _declare(library: ctypes.CDLL) -> None:
    library.am_isa.restype = ctypes.c_char_p
    library.am_limit_isa.argtypes = (ctypes.c_char_p,)
    library.am_limit_isa.restype = None
    library.am_set_threads.argtypes = (c_int,)
    library.am_panel_bytes.argtypes = (c_int64, c_int64, c_int)
    library.am_panel_bytes.restype = c_int64
    library.am_pack_panels.argtypes = (c_void_p, c_void_p, c_void_p, c_int64, c_int64, c_int)
    library.am_pack_panels.restype = None
    library.am_program_new.restype = c_void_p
    library.am_program_add.argtypes = (
        c_void_p,
        ctypes.c_char_p,
        ctypes.POINTER(ctypes.c_uint64),
        c_int,
    )
    for function in (library.am_program_delete, library.am_program_run):
        function.argtypes, function.restype = (c_void_p,), None


def set_threads(threads: int) -> None:
    """How many threads a kernel may use, in every thread that calls one."""
    library = load()
    if isinstance(library, Library):
        library.long.am_set_threads(threads)


def pointer(x: torch.Tensor | None) -> int | None:
    return None if x is None else x.data_ptr()
