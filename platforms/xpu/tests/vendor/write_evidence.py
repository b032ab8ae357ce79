"""Compile every kernel to SPIR-V and write what came of it, for docs/evidence.

.vendors/xpu/bin/python platforms/xpu/tests/vendor/write_evidence.py FILE
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

import compile_spirv
import compiled_evidence

from allmetal_xpu import XpuPlatform

NAMES = {"pvc": "Ponte Vecchio", "bmg": "Battlemage"}


def main(file: Path) -> int:
    results = [
        result
        for number, arch in compile_spirv.ARCHS.items()
        for result in compiled_evidence.compile_each(
            arch,
            compile_spirv.offered_for(arch),
            partial(compile_spirv.compiling_for, number),
        )
    ]
    name = ", ".join(NAMES[arch] for arch in compile_spirv.ARCHS.values())
    return compiled_evidence.write(XpuPlatform(), "allmetal-xpu 0.1.0", "", name, results, file)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
