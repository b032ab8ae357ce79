"""A function of the C++ library, which a thread that records its step calls and notes."""

from __future__ import annotations

import ctypes
import struct
import threading
from collections.abc import Callable, Sequence
from ctypes import c_float
from typing import Any, Protocol, TypeAlias

Argument: TypeAlias = int | float | None
"""An address, a number, or an absent tensor."""


class Tape(Protocol):
    def note(self, name: str, words: Sequence[int]) -> None:
        """The library's function `name` was called; `words` as `am_program_add` takes them."""
        ...


class _Thread(threading.local):
    tape: Tape | None = None


recording = _Thread()
"""Where this thread notes its calls."""


class Function:
    """Returns nothing.  `name` is the library's, without the prefix."""

    __slots__ = ("_call", "_floats", "name")

    def __init__(self, name: str, call: Any, signature: Sequence[type[Any]]) -> None:
        call.argtypes, call.restype = signature, None
        self.name = name
        self._call: Callable[..., None] = call
        self._floats = [one is c_float for one in signature]

    def __call__(self, *arguments: Argument) -> None:
        if recording.tape is not None:
            recording.tape.note(self.name, self._words(arguments))
        self._call(*arguments)

    def _words(self, arguments: Sequence[Argument]) -> list[int]:
        return [
            _bits(one or 0.0) if is_float else int(one or 0) & (1 << 64) - 1
            for one, is_float in zip(arguments, self._floats, strict=True)
        ]


def _bits(value: float) -> int:
    return int.from_bytes(struct.pack("=f", value), _ORDER)


_ORDER: Any = "little" if struct.pack("=H", 1)[0] else "big"


class Program:
    """Calls noted in C++, where `run` makes them again, without the interpreter's lock."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        self._handle: int | None = library.am_program_new()

    def add(self, name: str, words: Sequence[int]) -> None:
        found = self._library.am_program_add(
            self._handle, name.encode(), (ctypes.c_uint64 * len(words))(*words), len(words)
        )
        if not found:
            raise ValueError(f"{name} with {len(words)} arguments is not in the library's table")

    def run(self) -> None:
        self._library.am_program_run(self._handle)

    def __del__(self) -> None:
        if self._handle is not None:
            self._library.am_program_delete(self._handle)
            self._handle = None
