"""Types that the compiler takes."""

from __future__ import annotations

FLOATS = ("float32", "bfloat16")


def refuse_dtype(name: str) -> str | None:
    # Mosaic, Pallas's compiler, refuses to load IEEE half precision on every generation tried.
    return None if name in FLOATS else f"dtype must be one of {', '.join(FLOATS)}, not {name}"
