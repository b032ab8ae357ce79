"""The C++ kernels under the address and undefined behaviour sanitizers."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(
    not (shutil.which("cmake") and shutil.which("c++")), reason="needs cmake and a C++ compiler"
)
def test_kernels_touch_only_their_buffers(tmp_path: Path) -> None:
    for command in (
        ["cmake", "-S", ROOT, "-B", tmp_path, "-DALLMETAL_SANITIZE=ON"],
        ["cmake", "--build", tmp_path, "--target", "sanitize", "--parallel", "2"],
        [tmp_path / "sanitize", "12"],
    ):
        done = subprocess.run(command, text=True, capture_output=True)
        assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]
