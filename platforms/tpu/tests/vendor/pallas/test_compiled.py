"""Kernels compiled for TPUs that are not here, within the fast memory that their shapes claim."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from allmetal_tpu.pallas.chips import CHIPS

pytest.importorskip("libtpu", reason="needs libtpu, which has the compiler")


@dataclass(frozen=True, slots=True)
class Compiled:
    device: str
    kernels: list[dict[str, Any]]

    @property
    def errors(self) -> dict[str, str]:
        return {kernel["name"]: kernel["error"] for kernel in self.kernels if kernel["error"]}


def compile_for(generation: str, *options: str) -> Compiled:
    program = Path(__file__).with_name("compile_ahead.py")
    keep = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR") if name in os.environ}
    done = subprocess.run(
        [sys.executable, str(program), generation, *options],
        capture_output=True,
        text=True,
        env=keep | {"TPU_STDERR_LOG_LEVEL": "3", "TPU_LOG_DIR": "disabled"},
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return Compiled(**json.loads(done.stdout))


def check(found: Compiled, generation: str) -> None:
    assert found.device.startswith("TPU")
    assert {} == found.errors
    assert all(kernel["vmem"] <= CHIPS[generation].vmem_limit for kernel in found.kernels)
    # A copy of the cache in every step is what an unfit layout would cost.
    copying = [k["name"] for k in found.kernels if k["temporary_bytes"] > 1 << 28]
    assert [] == copying


@pytest.mark.timeout(300)
@pytest.mark.parametrize("generation", CHIPS)
def test_hot_kernels_compile(generation: str) -> None:
    found = compile_for(generation, "--hot")

    assert 4 == len(found.kernels)
    check(found, generation)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("generation", CHIPS)
def test_every_kernel_compiles(generation: str) -> None:
    found = compile_for(generation)

    assert len(found.kernels) > 40
    check(found, generation)


@pytest.mark.timeout(300)
def test_a_kernel_that_does_not_fit_is_seen() -> None:
    found = compile_for("v6e", "--hot", "--vmem", str(1 << 18))

    assert len(found.kernels) == len(found.errors)
    assert all("vmem" in error.lower() for error in found.errors.values())
