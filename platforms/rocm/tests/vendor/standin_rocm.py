"""As much of ROCm as amd-aiter asks for when it is imported, and nothing that computes.

It runs `hipconfig` and `rocminfo`, whose answers for an MI300X are given; loads an extension
module that holds two enumerations, made here from its header (`aiter_enum.h`); and asks torch for
the number of compute units.  Triton is told of a target, as it would be by AMD's driver.
"""

from __future__ import annotations

import enum
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import torch

from allmetal_triton.compile_only import compiling_for

ARCH = "gfx942"
_PROGRAMS = {
    "hipconfig": "7.0.0-0",
    "rocminfo": f"""Agent 1
  Name:                    {ARCH}
  Compute Unit:            304
  Device Type:             GPU""",
}


class ActivationType(enum.IntEnum):
    """Members: as in aiter_enum.h."""

    No = -1
    Silu = 0
    Gelu = 1
    Swiglu = 2


class QuantType(enum.IntEnum):
    """Members: as in aiter_enum.h."""

    No = 0
    per_Tensor = 1
    per_Token = 2
    per_1x32 = 3
    per_1x128 = 4
    per_128x128 = 5


def load() -> None:
    """Before aiter is imported; for the rest of the process."""
    folder = Path(tempfile.mkdtemp(prefix="standin-rocm-"))
    for name, answer in _PROGRAMS.items():
        program = folder / name
        program.write_text(f"#!/bin/sh\ncat <<'END'\n{answer}\nEND\n")
        program.chmod(0o755)
    os.environ["PATH"] = f"{folder}{os.pathsep}{os.environ['PATH']}"
    os.environ["GPU_ARCHS"] = ARCH
    enums = ModuleType("aiter.jit.module_aiter_enum")
    enums.__file__ = __file__
    enums.ActivationType, enums.QuantType = ActivationType, QuantType  # type: ignore[attr-defined]
    sys.modules[enums.__name__] = enums


class _Facts:
    """Of a small one: programs are made for every compute unit, and interpreted one by one."""

    multi_processor_count = 8
    name = "AMD Instinct MI300X"
    gcnArchName = ARCH


@contextmanager
def device() -> Iterator[None]:
    """Within, torch and Triton tell of such a device."""
    kept = torch.cuda.get_device_properties, torch.cuda.current_device
    torch.cuda.get_device_properties = lambda *_: _Facts  # type: ignore[assignment, return-value]
    torch.cuda.current_device = lambda: 0
    try:
        with compiling_for("hip", ARCH):
            yield
    finally:
        torch.cuda.get_device_properties, torch.cuda.current_device = kept
