"""Safetensors files: an 8 byte length, a JSON header, then the tensors' bytes.

Format: https://huggingface.co/docs/safetensors (the header names each tensor's dtype, shape and
place; the tensors fill the rest of the file without holes).  The header is held against the file
before anything is read, so that a download that broke off is found at once.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from allmetal.checkpoint.contract import TensorInfo
from allmetal.checkpoint.mapped import MappedFile
from allmetal.errors import CheckpointError

MAX_HEADER = 100_000_000
"""Bytes; the format's own limit."""

REFETCH = "it was probably not downloaded to its end: fetch it again"

DTYPES: Mapping[str, tuple[str, int]] = {
    "BOOL": ("bool", 1),
    "U8": ("uint8", 1),
    "I8": ("int8", 1),
    "I16": ("int16", 2),
    "U16": ("uint16", 2),
    "I32": ("int32", 4),
    "U32": ("uint32", 4),
    "I64": ("int64", 8),
    "U64": ("uint64", 8),
    "F8_E4M3": ("float8_e4m3fn", 1),
    "F8_E5M2": ("float8_e5m2", 1),
    "F8_E8M0": ("float8_e8m0fnu", 1),
    "F16": ("float16", 2),
    "BF16": ("bfloat16", 2),
    "F32": ("float32", 4),
    "F64": ("float64", 8),
}
"""Name in the header -> torch's name and bytes a value."""


@dataclass(frozen=True, slots=True)
class _Place:
    info: TensorInfo
    start: int
    end: int


class SafetensorsFile:
    """One file.  Raises CheckpointError when header and file do not fit together."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = MappedFile(path)
        try:
            header, self._data_start = _read_header(self._file)
            self._places = {
                name: _place(path, name, entry)
                for name, entry in header.items()
                if name != "__metadata__"
            }
            self._check_places()
        except BaseException:
            self._file.close()
            raise

    def _check_places(self) -> None:
        size = len(self._file) - self._data_start
        places = sorted(self._places.items(), key=lambda item: (item[1].start, item[1].end))
        promised = max((place.end for _, place in places), default=0)
        if promised > size:
            raise CheckpointError(
                f"{self.path} is truncated: its header promises {promised} bytes of tensors,"
                f" the file has {size}",
                hint=REFETCH,
            )
        for (one, a), (other, b) in itertools.pairwise(places):
            if b.start < a.end:
                raise CheckpointError(
                    f"{self.path}: tensors {one!r} and {other!r} lie over each other in the file"
                )
        self._places = dict(places)

    @property
    def tensors(self) -> dict[str, TensorInfo]:
        return {name: place.info for name, place in self._places.items()}

    def data(self, name: str) -> memoryview:
        place = self._places[name]
        return self._file.view[self._data_start + place.start : self._data_start + place.end]

    def close(self) -> None:
        self._file.close()


def _read_header(file: MappedFile) -> tuple[dict[str, Any], int]:
    """The parsed header, and where the tensors' bytes start."""
    size = len(file)
    if size < 8:
        raise CheckpointError(f"{file.path} is truncated: it has {size} bytes", hint=REFETCH)
    length = int.from_bytes(file.view[:8], "little")
    if length > MAX_HEADER:
        raise CheckpointError(
            f"{file.path} is not a safetensors file: its header would be {length} bytes long"
        )
    if 8 + length > size:
        raise CheckpointError(
            f"{file.path} is truncated: its header is {length} bytes long, the file {size}",
            hint=REFETCH,
        )
    try:
        header = json.loads(bytes(file.view[8 : 8 + length]))
    except ValueError as e:
        raise CheckpointError(
            f"{file.path} is not a safetensors file: its header is not JSON: {e}"
        ) from e
    if not isinstance(header, dict):
        raise CheckpointError(f"{file.path} is not a safetensors file: its header is no object")
    return header, 8 + length


def _place(path: Path, name: str, entry: Any) -> _Place:
    try:
        dtype, shape = entry["dtype"], tuple(entry["shape"])
        start, end = entry["data_offsets"]
        if not all(type(n) is int and n >= 0 for n in (*shape, start, end)):
            raise TypeError("sizes must be whole numbers of at least 0")
    except (KeyError, TypeError, ValueError) as e:
        raise CheckpointError(
            f"{path}: the header's entry of tensor {name!r} is malformed: {e}"
        ) from e
    if dtype not in DTYPES:
        raise CheckpointError(
            f"{path}: tensor {name!r} has the unknown dtype {dtype!r}",
            hint=f"dtypes that are read: {', '.join(DTYPES)}",
        )
    torch_name, itemsize = DTYPES[dtype]
    nbytes = math.prod(shape) * itemsize
    if end - start != nbytes:
        raise CheckpointError(
            f"{path}: tensor {name!r} of {dtype} and shape {list(shape)} needs {nbytes} bytes,"
            f" the header gives it {end - start}"
        )
    return _Place(TensorInfo(shape=shape, dtype=torch_name, nbytes=nbytes), start, end)
