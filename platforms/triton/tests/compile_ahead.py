"""Compile two kernels in the background, then launch them; prints who compiled what.

A program of its own, since a process either interprets Triton's kernels or compiles them.
"""

from __future__ import annotations

import json
import threading
from typing import Any

import torch
from triton import knobs

from allmetal.platform.specs import GatedActivationSpec, RMSNormSpec
from allmetal_triton import compile_only
from allmetal_triton.ahead import compile_ahead
from allmetal_triton.compile_only import SHARED_MEMORY, compiling_for
from allmetal_triton.kernels import kernels
from allmetal_triton.target import Target

compiled: list[tuple[str, bool]] = []


def note(*, src: Any, **_: Any) -> None:
    compiled.append((src.name, threading.current_thread() is threading.main_thread()))


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
    with compiling_for("cuda", 90):
        compile_ahead(rehearse)
        step()
    print(json.dumps({"compiled": sorted(compiled), "zeros": zeros}))


if __name__ == "__main__":
    main()
