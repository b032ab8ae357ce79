"""Compile the kernels that several platforms share for an Ascend 910B2 that need not be here.

Prints as JSON, for each kernel, how large the vendor's intermediate form (HIVM) of it is, or why it
does not compile.  The last stage, a closed assembler, is not in the packages: a program that copies
its input stands in for it, so that everything up to HIVM is the vendor's own.

A program of its own, since this Triton excludes the one that torch brings.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

ARCH = "Ascend910B2"
_ASSEMBLER = """#!/bin/sh
case "$1" in --version) echo "hivmc version 1.0.0"; exit 0;; esac
out=kernel.o; in=
while [ $# -gt 0 ]; do case "$1" in -o) out=$2; shift;; -*) ;; *) in=$1;; esac; shift; done
cp "$in" "$out"; cp "$in" "$out.o" 2>/dev/null; exit 0
"""
_TYPES = {
    "torch.float32": "fp32",
    "torch.bfloat16": "bf16",
    "torch.float16": "fp16",
    "torch.int64": "i64",
    "torch.int32": "i32",
    "torch.int8": "i8",
    "torch.uint8": "u8",
    "torch.bool": "i1",
}


def prepare() -> None:
    """The vendor's compiler, with the stand-in behind it, where Triton looks for it."""
    import ascendnpuir

    tools = Path(ascendnpuir.__file__).parent / "bin"
    for tool in tools.iterdir():
        tool.chmod(0o755)
    folder = Path(tempfile.mkdtemp())
    assembler = folder / "hivmc"
    assembler.write_text(_ASSEMBLER)
    assembler.chmod(0o755)
    os.environ["PATH"] = f"{folder}:{tools}:{os.environ['PATH']}"
    os.environ["TRITON_NPU_COMPILER_PATH"] = str(tools)
    os.environ["TRITON_CACHE_DIR"] = str(folder / "cache")
    os.environ.pop("TRITON_INTERPRET", None)


def compile_instead_of_launching(found: dict[str, str]) -> None:
    import triton
    from triton.backends import backends
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource
    from triton.runtime.jit import JITFunction

    class Chip:
        def get_arch(self) -> str:
            return ARCH

        def get_aicore_num(self) -> int:
            return 24

    backends["ascend"].compiler.add_stages.__globals__["NPUUtils"] = Chip

    def run(self: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> None:
        given = dict(zip(self.arg_names, args, strict=False)) | options
        signature, constants = {}, {}
        for parameter in self.params:
            value = given.get(parameter.name, parameter.default)
            if parameter.is_constexpr or value is None:
                constants[parameter.name] = value
            else:
                signature[parameter.name] = _type_of(value)
        name = self.fn.__name__
        if found.get(name, "").startswith("no: "):
            return
        try:
            source = ASTSource(self, signature, constants)
            kernel = triton.compile(source, target=GPUTarget("npu", ARCH, 0))
            sizes = {kind: len(code) for kind, code in kernel.asm.items()}
            found[name] = f"{sizes}"
        except Exception as error:  # whatever the compiler makes of it
            said = (getattr(error, "stderr", None) or b"").decode() or str(error)
            found[name] = f"no: {_why(said) or type(error).__name__}"[:300]

    JITFunction.run = run


def _why(said: str) -> str:
    """The line that tells, of many."""
    lines = [line.strip() for line in said.replace("\\n", "\n").splitlines() if line.strip()]
    telling = [line for line in lines if "rror" in line and "CompilationError" not in line]
    return (telling or lines[-1:] or [""])[0]


def _type_of(value: Any) -> str:
    import torch

    if isinstance(value, torch.Tensor):
        return "*" + _TYPES[str(value.dtype)]
    if isinstance(value, bool):
        return "i1"
    return "fp32" if isinstance(value, float) else "i32" if abs(value) < 2**31 else "i64"


def tried(found: dict[str, str], name: str, call: Callable[[], object]) -> None:
    """What fails before any kernel is launched is noted under the op's name."""
    try:
        call()
    except Exception as error:
        found.setdefault(f"op {name}", f"no: {type(error).__name__}: {error}"[:300])


def main() -> None:
    prepare()
    found: dict[str, str] = {}
    compile_instead_of_launching(found)
    from problems import ops

    for name, call in ops():
        tried(found, name, call)
    json.dump(found, sys.stdout, indent=1)


if __name__ == "__main__":
    main()
