"""Compile kernels for a GPU that is not there, and read what they would take of it.

Triton is given a driver that knows a target and launches nothing, so host code runs unchanged on
host tensors: real specialisation, real code generation, real limits.  For tests and for tuning
without hardware; it says nothing of results or of time.
"""

from __future__ import annotations

import gc
import re
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.backends.driver import DriverBase
from triton.compiler import compiler
from triton.runtime import driver
from triton.runtime.jit import JITFunction

SHARED_MEMORY: dict[int | str, int] = {
    80: 166_912,
    86: 101_376,
    89: 101_376,
    90: 232_448,
    100: 232_448,
    120: 101_376,
    "gfx90a": 65_536,
    "gfx942": 65_536,
    "gfx950": 163_840,
    "gfx1100": 65_536,
    "gfx1201": 65_536,
}
"""Bytes a program may have at most: the CUDA C++ programming guide's table of compute
capabilities, and the LDS sizes of AMD's ISA documents."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """`spills`: bytes a thread (NVIDIA: local memory, AMD: scratch); `shared`: bytes a program."""

    name: str
    registers: int
    spills: int
    shared: int
    num_warps: int


class _CompileOnly(DriverBase):  # type: ignore[misc]
    """As much of a driver as compiling and pretending to launch asks for."""

    def __init__(self, target: GPUTarget) -> None:
        self.target = target
        self.utils = self

    @classmethod
    def is_active(cls) -> bool:
        return True

    def map_python_to_cpp_type(self, ty: str) -> str:
        return ty

    def get_current_target(self) -> GPUTarget:
        return self.target

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")

    def get_benchmarker(self) -> Callable[..., list[float]]:
        return lambda call, **_: [call() or 0.0] * 3

    def get_current_device(self) -> int:
        return 0

    def set_current_device(self, device: int) -> None: ...

    def get_current_stream(self, device: int | None = None) -> int:
        return 0

    def get_device_properties(self, device: int) -> dict[str, int]:
        return {
            "max_shared_mem": SHARED_MEMORY[self.target.arch],
            "multiprocessor_count": 100,
            "warpSize": self.target.warp_size,
            "max_num_regs": 65536,
        }

    def load_binary(self, *_: object) -> tuple[int, int, int, int, int]:
        return 1, 1, 0, 0, 1024

    def unload_module(self, module: int) -> None: ...

    def launcher_cls(self, src: object, metadata: object) -> Callable[..., None]:
        return lambda *_: None


@contextmanager
def compiling_for(backend: str, arch: int | str) -> Iterator[list[Usage]]:
    """Within, launches compile for the target ("cuda", 90), ("hip", "gfx942"); each kernel that
    is compiled is appended to the list.  Raises Triton's OutOfResources where one cannot load."""
    narrow = backend == "cuda" or str(arch).startswith(("gfx10", "gfx11", "gfx12"))
    found: list[Usage] = []
    plain = JITFunction._do_compile

    def compile_and_note(self: Any, *args: Any, **kwargs: Any) -> Any:
        kernel = plain(self, *args, **kwargs)
        found.append(_usage(kernel))
        return kernel

    JITFunction._do_compile = compile_and_note
    driver.set_active(_CompileOnly(GPUTarget(backend, arch, 32 if narrow else 64)))
    _forget_compiled()
    try:
        yield found
    finally:
        JITFunction._do_compile = plain
        driver._active = None
        _forget_compiled()


def _forget_compiled() -> None:
    """Kernels and the limit of shared memory are cached by device number, and every target here is
    device 0."""
    compiler.max_shared_mem.cache_clear()
    # By type and not isinstance: that would wake every lazy object in the process.
    for function in [f for f in gc.get_objects() if issubclass(type(f), JITFunction)]:
        function.device_caches.clear()


def _usage(kernel: Any) -> Usage:
    metadata = kernel.metadata
    if metadata.target.backend == "hip":
        text = kernel.asm["amdgcn"]
        registers, spills = (
            int(re.search(rf"\.{name}:\s*(\d+)", text)[1])  # type: ignore[index]
            for name in ("vgpr_count", "private_segment_fixed_size")
        )
    else:
        registers, spills = _cubin_usage(kernel.asm["cubin"])
    return Usage(
        name=metadata.name,
        registers=registers,
        spills=spills,
        shared=metadata.shared,
        num_warps=metadata.num_warps,
    )


def _cubin_usage(cubin: bytes) -> tuple[int, int]:
    """(registers, bytes of stack a thread) as NVIDIA's tool reads them from the object."""
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [str(tool), "-res-usage", file.name]
        told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = re.search(r"REG:(\d+) STACK:(\d+) SHARED:\d+ LOCAL:(\d+)", told)
    assert found is not None, told
    return int(found[1]), int(found[2]) + int(found[3])
