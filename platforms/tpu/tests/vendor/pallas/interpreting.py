"""Kernels interpreted on the CPU: quickly, or with uninitialised memory and races looked for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax._src.pallas.mosaic.interpret import interpret_pallas_call as interpreter
from jax.experimental.pallas import tpu as pltpu

FLOAT32, BFLOAT16 = 2e-6, 4e-3
"""Largest relative error: rounding once to bfloat16 makes 1.7e-3, its weights in attention more."""


def quickly(call: Callable[[Any], jax.Array]) -> np.ndarray:
    return _wide(call(True))


def strictly(call: Callable[[Any], jax.Array]) -> np.ndarray:
    """Memory begins as NaN, copies end when they are waited for, and no two may meet."""
    strict = pltpu.InterpretParams(
        detect_races=True, uninitialized_memory="nan", dma_execution_mode="on_wait"
    )
    out = _wide(call(strict))
    assert interpreter.races is not None
    assert not interpreter.races.races_found
    return out


def _wide(x: jax.Array) -> np.ndarray:
    return np.asarray(x.astype("float32")).astype(np.float64)


def error(got: np.ndarray, want: np.ndarray) -> float:
    assert np.isfinite(got).all()
    return float(np.linalg.norm(got - want) / np.linalg.norm(want))
