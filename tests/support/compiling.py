"""Triton's kernels compiled for GPUs that are not here, in a process of its own: one that
interprets kernels, as those of tests do, can compile none."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

PROGRAM = Path(__file__).parents[2] / "platforms/triton/tests/compile_all.py"


def compiled(folder: Path, *arguments: str, program: Path = PROGRAM) -> dict[str, Any]:
    """What the program prints; `folder` is for what the compiler keeps."""
    command = [sys.executable, str(program), *arguments]
    # Nothing of this process's environment: its kernels are interpreted.
    env = {"TRITON_CACHE_DIR": str(folder), "PATH": "/usr/bin:/bin", "HOME": str(folder)}
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found
