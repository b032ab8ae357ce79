"""Compile every kernel for AMD's GPUs and write what came of it, for docs/evidence.

python platforms/rocm/tests/write_compiled.py FILE [ARCH ...]
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "triton" / "tests"))
import compiled_evidence
from compile_all import offered_for

from allmetal_rocm import RocmPlatform
from allmetal_triton.compile_only import compiling_for

ARCHS = ("gfx90a", "gfx942", "gfx950", "gfx1100", "gfx1201")


def main(file: Path, archs: list[str]) -> int:
    results = [
        result
        for arch in archs
        for result in compiled_evidence.compile_each(
            arch, offered_for("hip", arch), partial(compiling_for, "hip", arch)
        )
    ]
    name = ", ".join(archs)
    return compiled_evidence.write(
        RocmPlatform(), "allmetal-rocm 0.1.0", "gfx942", name, results, file
    )


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:] or list(ARCHS)))
