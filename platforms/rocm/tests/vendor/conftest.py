"""Tests that need the real amd-aiter; `make test-vendors` has an environment with it."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

if find_spec("aiter") is None:
    collect_ignore_glob = ["test_*.py"]
else:
    import standin_rocm

    standin_rocm.load()
