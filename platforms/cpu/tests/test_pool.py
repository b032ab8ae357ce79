"""The library's threads: shared by callers, safe in a fork, and no second OpenMP runtime."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch

from allmetal.platform.specs import DenseWeight, LinearSpec
from allmetal_cpu.native import library
from allmetal_cpu.native.linear import LINEAR

SPEC = LinearSpec(
    dtype="float32",
    in_features=256,
    out_features=300,
    bias=False,
    weight=DenseWeight(dtype="float32"),
)


def product_is_right(generator: torch.Generator | None = None) -> bool:
    op = LINEAR.build(SPEC)
    weight = torch.randn(300, 256, generator=generator)
    x = torch.randn(5, 256, generator=generator)
    y = op(x, op.pack({"weight": weight}), None)
    return torch.allclose(y, x @ weight.T, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("threads", [1, 2, 7])
def test_any_number_of_threads_gives_the_same_product(threads: int) -> None:
    library.set_threads(threads)
    assert all(product_is_right() for _ in range(50))


def test_several_callers_share_the_pool() -> None:
    library.set_threads(3)
    right: list[bool] = []

    def call() -> None:
        right.extend(product_is_right(torch.Generator()) for _ in range(40))

    callers = [threading.Thread(target=call) for _ in range(4)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert len(right) == 160
    assert all(right)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
def test_a_forked_child_gets_threads_of_its_own() -> None:
    library.set_threads(2)
    assert product_is_right()
    # torch's own threads do not survive a fork: the child only multiplies with the library.
    op = LINEAR.build(SPEC)
    weight = op.pack({"weight": torch.ones(300, 256)})
    x = torch.ones(1, 256)
    child = os.fork()
    if child == 0:
        ok = all(float(op(x, weight, None)[0, i]) == 256.0 for i in range(300))
        os._exit(0 if ok else 1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs /proc")
def test_one_openmp_runtime_is_loaded_at_most() -> None:
    """In a process of its own: some packages that tests import bring copies."""
    program = (
        "import torch\n"
        "from allmetal_cpu.native import library\n"
        "library.load(); torch.ones(2000, 2000) @ torch.ones(2000, 1)\n"
        "print(open('/proc/self/maps').read())"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    files = {line.split()[-1] for line in done.stdout.splitlines() if "omp" in line}
    runtimes = {Path(path).name for path in files}
    assert (
        len([name for name in runtimes if name.startswith(("libgomp", "libiomp", "libomp"))]) <= 1
    )
