"""The memory's read bandwidth, between two measurements: the limit of decoding one sequence."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path


def bandwidth() -> float | None:
    """GB/s with a thread on each core; None where there is no C compiler."""
    program = _program()
    if program is None:
        return None
    threads = len(os.sched_getaffinity(0))
    out = subprocess.run([program, str(threads)], check=True, capture_output=True, text=True).stdout
    return max(float(line) for line in out.split())


@cache
def _program() -> Path | None:
    compiler = shutil.which("cc")
    if compiler is None:
        return None
    source = Path(__file__).with_name("probe.c")
    program = Path(tempfile.mkdtemp(prefix="allmetal-probe-")) / "probe"
    command = [compiler, "-O3", "-march=native", "-pthread", str(source), "-o", str(program)]
    subprocess.run(command, check=True)
    return program
