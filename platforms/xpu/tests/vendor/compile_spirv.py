"""Compile kernels, as a usual model's steps launch them, to SPIR-V for GPUs that are not here.

Usage: compile_spirv.py NAME ..., for instance `attention moe`; all where none is named.  Prints as
JSON what became of each, by architecture.  Runs where triton-xpu is: its driver, which needs SYCL,
is replaced by one that knows a target and launches nothing, and so is the little C++ program by
which it names an architecture.  Host code runs unchanged on host tensors.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.backends.driver import DriverBase
from triton.runtime import driver

sys.path.insert(0, str(Path(__file__).parents[3] / "triton" / "tests"))
import usual

from allmetal.platform.contract import AnyKernel, DeviceInfo, Spec
from allmetal_triton.kernels import kernels
from allmetal_xpu.kernels import target

ARCHS = {1: "pvc", 2: "bmg"}
"""Ponte Vecchio (Max 1550) and Battlemage (B580), by triton-xpu's numbers."""
compiled: list[Any] = []


def properties(arch: int) -> dict[str, Any]:
    """What triton-xpu's driver reads of a device with matrix units."""
    return {
        "architecture": arch,
        "name": ARCHS[arch],
        "sub_group_sizes": [16, 32],
        "max_work_group_size": 1024,
        "max_num_sub_groups": 64,
        "has_fp64": True,
        "has_subgroup_matrix_multiply_accumulate": True,
        "has_subgroup_matrix_multiply_accumulate_tensor_float32": True,
        "has_subgroup_2d_block_io": True,
        "has_bfloat16_conversions": True,
        "max_shared_mem": 131_072,
        "multiprocessor_count": 64,
    }


class NoDevice(DriverBase):  # type: ignore[misc]
    def __init__(self, arch: int) -> None:
        self._arch = arch
        self.utils = self

    @classmethod
    def is_active(cls) -> bool:
        return True

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("xpu", properties(self._arch), 32)

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")

    def get_benchmarker(self) -> Callable[..., list[float]]:
        return lambda call, **_: [call() or 0.0] * 3

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int | None = None) -> int:
        return 0

    def get_device_properties(self, device: int) -> dict[str, Any]:
        return properties(self._arch)

    def load_binary(self, *_: object) -> tuple[int, int, int, int]:
        return 1, 1, 0, 0

    def launcher_cls(self, src: object, metadata: object) -> Callable[..., None]:
        return lambda *_: None


@contextmanager
def compiling_for(arch: int) -> Iterator[None]:
    import triton.compiler as compiler

    backend = triton.backends.backends["intel"].compiler
    names = SimpleNamespace(parse_device_arch=lambda number: ARCHS.get(number, ""))
    backend.__init__.__globals__["compile_module_from_src"] = lambda *_, **__: names
    plain = compiler.compile

    def compile_and_note(*args: Any, **kwargs: Any) -> Any:
        kernel = plain(*args, **kwargs)
        compiled.append(kernel)
        return kernel

    compiler.compile = compile_and_note
    driver.set_active(NoDevice(arch))
    for function in _functions():
        function.device_caches.clear()
    try:
        yield
    finally:
        compiler.compile = plain


def _functions() -> list[Any]:
    import gc

    kind = triton.runtime.jit.JITFunction
    return [f for f in gc.get_objects() if issubclass(type(f), kind)]


STEPS: Mapping[str, Sequence[Spec]] = {
    "attention": [usual.LLAMA],
    "attention_input": [usual.INPUTS[0]],
    "moe": [usual.EXPERTS],
    "rest": usual.REST,
}
"""What is compiled together."""


def offered_for(arch: str) -> Mapping[str, Sequence[AnyKernel]]:
    info = DeviceInfo(index=0, name=arch, total_memory=0)
    return kernels(replace(target(info), num_cores=lambda: 64))


def main() -> None:
    found: dict[str, dict[str, Any]] = {}
    for number, arch in ARCHS.items():
        offered = offered_for(arch)
        found[arch] = {}
        for name, specs in STEPS.items():
            if sys.argv[1:] and name not in sys.argv[1:]:
                continue
            compiled.clear()
            failure = ""
            with compiling_for(number):
                try:
                    failure = "; ".join(filter(None, (usual.launch(s, offered) for s in specs)))
                except Exception as error:
                    lines = str(error).strip().splitlines() or [""]
                    failure = f"{type(error).__name__}: {lines[0]}"
            found[arch][name] = {
                "failure": failure,
                "kernels": [
                    {
                        "name": k.metadata.name,
                        "spirv": k.asm["spv"][:4].hex() == "03022307",
                        "shared": k.metadata.shared,
                        "matrix_unit": "dpas<{" in k.asm["ttgir"],
                    }
                    for k in compiled
                ],
            }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
