"""Kernels compiled in the background: once each, by other processes, with nothing launched."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="needs triton")


@pytest.mark.parametrize(
    ("how", "by"), [("whole", "by another process"), ("broken", "here")], ids=["whole", "broken"]
)
def test_kernels_of_a_rehearsal_are_compiled_once_and_before_their_launch(
    tmp_path: Path, how: str, by: str
) -> None:
    """Where there is no server, threads of this process compile."""
    command = [sys.executable, str(Path(__file__).with_name("compile_ahead.py")), how]
    # Nothing of this process's environment: its kernels are interpreted.
    env = {"TRITON_CACHE_DIR": str(tmp_path), "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    here, there = found.pop("keys")
    assert here == there
    assert found == {"compiled": [["gated_activation", by], ["rms_norm", by]], "zeros": [True]}
