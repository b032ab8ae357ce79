"""Lengths that a step's tensors may have."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Padding:
    """`static`: the device compiles a program for each shape, so lengths are powers of two."""

    static: bool = False

    def length(self, wanted: int, most: int | None = None) -> int:
        """`wanted`, or the next length above it that there may be, `most` at most."""
        if not self.static or wanted < 1:
            return wanted
        length = 1 << (wanted - 1).bit_length()
        return length if most is None else min(length, most)

    def append(self, words: array[int], values: Sequence[int], filler: int) -> int:
        """`values` and as many `filler`s behind `words` as make their length one there may be;
        returns it."""
        length = self.length(len(values))
        words.extend(values)
        words.extend([filler] * (length - len(values)))
        return length


AS_THEY_ARE = Padding()
