"""Kernels compiled for GPUs that are not here: they fit, and no hot one keeps values in memory for
want of registers."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="needs triton")

HOT = {
    *("multiply_rows", "attention", "attention_input", "rms_norm"),
    *("gated_activation", "chunk_tops", "narrow", "draw"),
    *("experts_in", "experts_out"),
}
TARGETS = [*(("cuda", str(arch)) for arch in (80, 89, 90, 100, 120)), ("hip", "gfx942")]


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize(("backend", "arch"), TARGETS)
def test_every_kernel_compiles_and_hot_ones_spill_nothing(
    backend: str, arch: str, tmp_path: Path
) -> None:
    command = [sys.executable, str(Path(__file__).with_name("compile_all.py")), backend, arch]
    # Nothing of this process's environment: its kernels are interpreted.
    env = {"TRITON_CACHE_DIR": str(tmp_path), "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)

    assert HOT <= {usage["name"] for usage in found}
    assert [] == [u for u in found if u["name"] in HOT and u["spills"]]
