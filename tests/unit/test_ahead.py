from __future__ import annotations

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
