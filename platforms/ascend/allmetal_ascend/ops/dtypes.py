"""Which types of numbers a chip's operators take."""

from __future__ import annotations

from collections.abc import Sequence

from allmetal_ascend.chips import Chip

HALF = ("float16", "bfloat16")
FLOAT = ("float32", *HALF)


def refuse_dtype(chip: Chip, dtype: str, taken: Sequence[str]) -> str | None:
    known = [name for name in taken if chip.bfloat16 or name != "bfloat16"]
    return None if dtype in known else f"dtype must be {' or '.join(known)}, not {dtype}"
