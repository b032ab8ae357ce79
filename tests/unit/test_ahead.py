from __future__ import annotations

import os
import subprocess
import sys

CODE = """
import sys, threading
from allmetal.executor.ahead import link_ahead
link_ahead()
for thread in threading.enumerate():
    if thread is not threading.main_thread():
        thread.join()
print("libtorch_python.so" in open("/proc/self/maps").read(), "torch" in sys.modules)
import torch
print(torch.ones(2).sum().item())
"""


def test_torchs_libraries_are_linked_before_torch_is_imported() -> None:
    """Where torch was built for the host alone; elsewhere its own order is kept."""
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)

    linked, total = done.stdout.splitlines()
    assert total == "2.0"
    host_only = subprocess.run(
        [sys.executable, "-c", "import torch; print(torch.version.cuda or torch.version.hip)"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    assert linked == f"{host_only == 'None' and sys.platform == 'linux'} False"


def test_threads_are_told_to_sleep_before_their_library_is_linked() -> None:
    environment = {k: v for k, v in os.environ.items() if k != "OMP_WAIT_POLICY"}
    environment["OMP_DISPLAY_ENV"] = "VERBOSE"  # what GNU's OpenMP will do, as it is linked
    done = subprocess.run(
        [sys.executable, "-c", CODE], env=environment, capture_output=True, text=True, check=True
    )
    spins = [line for line in done.stderr.splitlines() if "GOMP_SPINCOUNT" in line]
    assert all("'0'" in line for line in spins), spins
