"""The GGUF container: metadata, a table of tensors, then aligned tensor data.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, versions 2 and 3, little endian.
A vocabulary is a quarter of a million strings: they are stepped over here and decoded on demand.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from allmetal.checkpoint.mapped import MappedFile
from allmetal.errors import CheckpointError
from allmetal.quant.ggml import BLOCKS, DENSE, NAMES

REFETCH = "it was probably not downloaded to its end: fetch it again"
MAX_DIMS = 4

_STRING, _ARRAY, _BOOL = 8, 9, 7
_SCALARS: Mapping[int, str] = {
    0: "u1", 1: "i1", 2: "u2", 3: "i2", 4: "u4", 5: "i4", 6: "f4", 7: "?", 10: "u8", 11: "i8",
    12: "f8",
}  # fmt: skip
_LENGTH = struct.Struct("<Q")

_ENDS: dict[tuple[object, int, int], int] = {}
"""Where a version of a file has a list of strings, from there to its end."""
_MOST_ENDS = 16


class StringArray:
    """Strings of a metadata array, decoded when they are asked for."""

    def __init__(self, view: memoryview, count: int) -> None:
        self.bytes = view  # each string: its length in 8 bytes, then UTF-8
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[str]:
        return iter(self.decode())

    def copy(self) -> StringArray:
        """One that does not keep the file mapped."""
        return StringArray(memoryview(bytes(self.bytes)), self._count)

    def split(self) -> list[bytes]:
        """The strings as they are stored."""
        raw = bytes(self.bytes)
        length_at = _LENGTH.unpack_from
        out = []
        end = 0
        for _ in range(self._count):
            start = end + 8
            end = start + length_at(raw, end)[0]
            out.append(raw[start:end])
        return out

    def decode(self) -> list[str]:
        """Bytes that are no UTF-8 become U+FFFD."""
        return [string.decode("utf-8", "replace") for string in self.split()]


Value: TypeAlias = int | float | bool | str | StringArray | npt.NDArray[Any] | list[Any]


@dataclass(frozen=True, slots=True)
class GGUFTensor:
    """`shape` is in torch's order, outermost first; `type` is GGML's name; offsets are absolute."""

    shape: tuple[int, ...]
    type: str
    start: int
    nbytes: int


class GGUFFile:
    """One file, mapped.  Raises CheckpointError when it is cut short or contradicts itself."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = MappedFile(path)
        try:
            cursor = _Cursor(self._file)
            num_tensors, num_values = _read_magic(cursor)
            self.metadata: dict[str, Value] = {}
            for _ in range(num_values):
                key = cursor.string()
                self.metadata[key] = cursor.value(cursor.number("u4"))
            self.tensors = self._read_table(cursor, num_tensors)
        except BaseException:
            self._file.close()
            raise

    def _read_table(self, cursor: _Cursor, count: int) -> dict[str, GGUFTensor]:
        rows = [_read_row(cursor) for _ in range(count)]
        align = self.metadata.get("general.alignment", 32)
        if not isinstance(align, int) or align < 1:
            raise CheckpointError(f"{self.path}: general.alignment is {align!r}")
        base = -(-cursor.pos // align) * align
        tensors: dict[str, GGUFTensor] = {}
        for name, shape, kind, offset in rows:
            if name in tensors:
                raise CheckpointError(f"{self.path} has two tensors called {name!r}")
            nbytes = _nbytes(self.path, name, shape, kind)
            if base + offset + nbytes > len(self._file):
                raise CheckpointError(
                    f"{self.path} is truncated: tensor {name!r} ends at byte"
                    f" {base + offset + nbytes}, the file has {len(self._file)}",
                    hint=REFETCH,
                )
            tensors[name] = GGUFTensor(shape, kind, base + offset, nbytes)
        return tensors

    def data(self, name: str) -> memoryview:
        tensor = self.tensors[name]
        return self._file.view[tensor.start : tensor.start + tensor.nbytes]

    def close(self) -> None:
        self._file.close()


def _read_magic(cursor: _Cursor) -> tuple[int, int]:
    """(number of tensors, number of metadata values)."""
    path = cursor.path
    magic = bytes(cursor.take(4))
    if magic != b"GGUF":
        raise CheckpointError(f"{path} is not a GGUF file: it starts with {magic!r}, not b'GGUF'")
    version = cursor.number("u4")
    if version not in (2, 3):
        swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
        raise CheckpointError(
            f"{path} is GGUF version {version}; versions 2 and 3 in little endian are read"
            if swapped not in (2, 3)
            else f"{path} is a big-endian GGUF file; only little-endian ones are read",
            hint="convert the model again with a present llama.cpp",
        )
    num_tensors, num_values = cursor.number("u8"), cursor.number("u8")
    # Smallest possible entries: a name's length, dims, type and offset; a key, a type and a byte.
    if num_tensors * 24 + num_values * 13 > cursor.left:
        raise CheckpointError(
            f"{path}: its header promises {num_tensors} tensors and {num_values} metadata values,"
            f" more than {cursor.left} bytes can hold",
            hint=REFETCH,
        )
    return num_tensors, num_values


def _read_row(cursor: _Cursor) -> tuple[str, tuple[int, ...], str, int]:
    """(name, shape, type, offset into the data section)."""
    name = cursor.string()
    num_dims = cursor.number("u4")
    if num_dims > MAX_DIMS:
        raise CheckpointError(f"{cursor.path}: tensor {name!r} has {num_dims} dimensions")
    shape = tuple(cursor.number("u8") for _ in range(num_dims))[::-1]
    number = cursor.number("u4")
    kind = NAMES.get(number, f"number {number}")
    if kind not in BLOCKS and kind not in DENSE:
        raise CheckpointError(
            f"{cursor.path}: tensor {name!r} is of the GGML type {kind}, which is not read",
            hint=f"take a file quantised to one of {', '.join(BLOCKS)}, F16, BF16 or F32",
        )
    return name, shape, kind, cursor.number("u8")


def _nbytes(path: Path, name: str, shape: tuple[int, ...], kind: str) -> int:
    count = math.prod(shape)
    if kind in DENSE:
        return count * DENSE[kind][1]
    block = BLOCKS[kind]
    if not shape or shape[-1] % block.elements:
        raise CheckpointError(
            f"{path}: tensor {name!r} of shape {list(shape)} cannot be {kind}, whose blocks hold"
            f" {block.elements} values"
        )
    return count // block.elements * block.nbytes


class _Cursor:
    """A place in the file that never runs over its end."""

    def __init__(self, file: MappedFile) -> None:
        self.path = file.path
        self.pos = 0
        self._view = file.view
        self._version = file.version if file.has_settled else None
        self._size = len(file)

    @property
    def left(self) -> int:
        return self._size - self.pos

    def take(self, nbytes: int) -> memoryview:
        if nbytes > self.left:
            raise CheckpointError(
                f"{self.path} is truncated: {nbytes} bytes are missing at byte {self.pos},"
                f" the file has {self._size}",
                hint=REFETCH,
            )
        start, self.pos = self.pos, self.pos + nbytes
        return self._view[start : self.pos]

    def number(self, code: str) -> Any:
        dtype = np.dtype(code).newbyteorder("<")
        value = np.frombuffer(self.take(dtype.itemsize), dtype)[0]
        # 1e-6 was meant, not its nearest float32 written as a double.
        return float(str(value)) if code == "f4" else value.item()

    def string(self) -> str:
        return bytes(self.take(self.number("u8"))).decode("utf-8", "replace")

    def value(self, kind: int) -> Value:
        if kind == _STRING:
            return self.string()
        if kind == _ARRAY:
            return self._array(self.number("u4"), self.number("u8"))
        if kind in _SCALARS:
            value: int | float | bool = self.number(_SCALARS[kind])
            return value
        raise CheckpointError(
            f"{self.path}: a metadata value before byte {self.pos} has the unknown type {kind}"
        )

    def _array(self, kind: int, count: int) -> Value:
        if kind == _STRING:
            return self._strings(count)
        if kind == _ARRAY:
            if count * 12 > self.left:
                self.take(count * 12)
            return [self._array(self.number("u4"), self.number("u8")) for _ in range(count)]
        if kind not in _SCALARS:
            raise CheckpointError(
                f"{self.path}: a metadata array before byte {self.pos} has the unknown type {kind}"
            )
        dtype = np.dtype(_SCALARS[kind]).newbyteorder("<")
        return np.frombuffer(self.take(count * dtype.itemsize), dtype)

    def _strings(self, count: int) -> StringArray:
        """Steps from length to length; this loop is what parsing a vocabulary costs, and a file is
        opened three times while a model is loaded."""
        view, size, start = self._view, self._size, self.pos
        known = _ENDS.get((self._version, start, count)) if self._version else None
        if known is not None:
            return StringArray(self.take(known - start), count)
        length_at = _LENGTH.unpack_from
        pos = start
        try:
            for _ in range(count):
                pos += 8 + length_at(view, pos)[0]
                if pos > size:
                    break
        except struct.error:
            pos = size + 1
        self.take(min(pos, size + 1) - start)
        if self._version is not None:
            while len(_ENDS) >= _MOST_ENDS:
                _ENDS.pop(next(iter(_ENDS)), None)
            _ENDS[self._version, start, count] = pos
        return StringArray(view[start:pos], count)
