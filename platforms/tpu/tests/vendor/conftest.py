"""Tests that need the real torch-tpu; `make test-vendors` runs them in an environment that has it.

Without it nothing here is collected.  With it the device type `tpu` is XLA's CPU client: see
`on_cpu`.
"""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

os.environ.setdefault("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")
sys.path.insert(0, str(Path(__file__).parent))

from allmetal.platform.contract import Absent, Broken, DeviceInfo
from allmetal_tpu import TpuPlatform

if find_spec("torch_tpu") is None:
    collect_ignore_glob = ["test_*.py"]
else:
    import on_cpu

    on_cpu.start()

PACKAGES = {"torch": "2.13.0", "torch-tpu": "0.2.0", "libtpu": "0.0.52"}
"""As on a machine with a TPU: libtpu itself is what the shim stands in for."""


@pytest.fixture(scope="session")
def tpu(tmp_path_factory: pytest.TempPathFactory) -> TpuPlatform:
    """On a machine with one v5e, as far as its files say."""
    return TpuPlatform(on_cpu.machine(tmp_path_factory.mktemp("machine")), PACKAGES, by_hand=False)


@pytest.fixture(scope="session")
def info(tpu: TpuPlatform) -> DeviceInfo:
    found = tpu.probe()
    assert not isinstance(found, Absent | Broken)
    return found[0]
