"""Hopper's kernels compile without one, and keep all values in registers."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="needs triton")


_OUTSIDE_OF_LOOPS = 8
"""Bytes: with Triton 3.7 attention over heads of 256 keeps a thread's number in memory, which it
needs where values are blanked."""


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_they_compile_and_spill_nothing(tmp_path: Path) -> None:
    command = [sys.executable, str(Path(__file__).with_name("compile_hopper.py"))]
    # Nothing of this process's environment: its Triton kernels may be interpreted.
    env = {"TRITON_CACHE_DIR": str(tmp_path), "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)

    kinds = Counter(usage["name"] for usage in found)
    assert kinds["hopper_attention"] == 7
    assert kinds["hopper_linear"] >= 12
    assert [] == [usage for usage in found if usage["spills"] > _OUTSIDE_OF_LOOPS]
