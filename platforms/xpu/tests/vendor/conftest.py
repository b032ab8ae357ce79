"""Tests that need triton-xpu and the real vllm-xpu-kernels; `make test-vendors` has an environment
with them."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

if find_spec("vllm_xpu_kernels") is None:
    collect_ignore_glob = ["test_*.py"]
