"""Compile two kernels in the background, then launch them; prints how each was come by.

A program of its own, since a process either interprets Triton's kernels or compiles them.
"""

from __future__ import annotations

import json
import sys
import threading
from typing import Any

import torch
import triton
from triton import knobs
from triton.compiler.compiler import ASTSource

from allmetal.platform.specs import GatedActivationSpec, RMSNormSpec
from allmetal_triton import compile_only
from allmetal_triton.ahead import compile_ahead
from allmetal_triton.compile_only import SHARED_MEMORY, compiling_for
from allmetal_triton.compile_server import Job, pack, unpack
from allmetal_triton.compilers import Compilers
from allmetal_triton.jit import thresholds
from allmetal_triton.kernels import kernels
from allmetal_triton.target import Target

found: list[tuple[str, str]] = []


def note(*, src: Any, cache_hit: bool, **_: Any) -> None:
    waiting = threading.current_thread() is threading.main_thread()
    how = "by another process" if cache_hit else "here"
    found.append((src.name, f"{how}, while its launch waits" if waiting else how))


def keys() -> list[str]:
    """What a function is looked up by, as this process and as the server see it.  Triton's keys
    depend on the order in which they are asked for: here the function that `resolve` calls, and
    whose constants it does not see otherwise, comes first."""
    assert thresholds._least.cache_key
    job = Job(
        function=thresholds.resolve,
        key=thresholds.resolve.cache_key,
        source=ASTSource,
        signature={},
        constants={},
        attributes={},
        options={},
        target=None,
    )
    found = [job.key]
    compile_it, triton.compile = triton.compile, lambda source, **_: found.append(source.fn.hash)
    for function in (thresholds.resolve, thresholds._least):
        function.hash = None  # as in a process that has seen neither
    unpack(pack(job)).run()
    triton.compile = compile_it
    return found


def main() -> None:
    target = Target(num_cores=lambda: 100, shared_memory=SHARED_MEMORY[90], dot_rows=64)
    offered = kernels(target)
    norm = offered["rms_norm"][0].build(RMSNormSpec(dtype="bfloat16", dim=1024, eps=1e-6))
    gate = offered["gated_activation"][0].build(
        GatedActivationSpec(dtype="bfloat16", dim=512, activation="silu")
    )
    x = torch.zeros(4, 1024, dtype=torch.bfloat16)
    zeros = []

    def step() -> None:
        norm(x, x[0], None)
        gate(x)

    def rehearse() -> None:
        step()
        step()
        zeros.append(not torch.empty(1 << 16).any())

    compile_only._usage = lambda kernel: None  # type: ignore[assignment, return-value]
    knobs.compilation.listener = note
    if "broken" in sys.argv:
        Compilers.__init__.__globals__["_SERVE"] = "raise SystemExit; "
    with compiling_for("cuda", 90):
        compile_ahead(rehearse)
        step()
    print(json.dumps({"compiled": sorted(found), "zeros": zeros, "keys": keys()}))


if __name__ == "__main__":
    main()
