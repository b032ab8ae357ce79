"""Compile kernels, as the usual models have them, for GPUs that need not be here.

Usage: compile_all.py [--hot] BACKEND:ARCH ..., for instance `cuda:90 hip:gfx942`.  Prints as JSON
what each kernel takes on each, cut as the platform of that backend cuts it.  `--hot`: those alone
that a decode step of a usual model launches.  A program of its own, since a process either
interprets kernels or compiles them.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from importlib import import_module

import usual

from allmetal.platform.contract import AnyKernel, DeviceInfo
from allmetal_triton.compile_only import compiling_for
from allmetal_triton.kernels import kernels

PLATFORMS = {"cuda": ("allmetal_cuda", "sm_{}"), "hip": ("allmetal_rocm", "{}")}


def offered_for(backend: str, number: str) -> Mapping[str, Sequence[AnyKernel]]:
    """The shared kernels, as the platform of that backend has them."""
    package, spelled = PLATFORMS[backend]
    info = DeviceInfo(index=0, name=number, total_memory=0, arch=spelled.format(number))
    target = import_module(f"{package}.kernels").target(info)
    return kernels(replace(target, num_cores=lambda: 100))


def main() -> None:
    hot, names = "--hot" in sys.argv, [name for name in sys.argv[1:] if name != "--hot"]
    found = {}
    for name in names:
        backend, number = name.split(":")
        offered = offered_for(backend, number)
        with compiling_for(backend, int(number) if number.isdigit() else number) as usages:
            for spec in usual.HOT if hot else usual.EVERYTHING:
                usual.launch(spec, offered, decoding=hot)
        found[name] = [asdict(usage) for usage in usages]
    print(json.dumps(found))


if __name__ == "__main__":
    main()
