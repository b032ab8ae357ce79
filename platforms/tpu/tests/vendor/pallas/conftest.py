from __future__ import annotations

import os
import secrets
import sys
from pathlib import Path

import numpy as np
import pytest

os.environ.setdefault("JAX_PLATFORMS", "cpu")
sys.path.insert(0, str(Path(__file__).parent))  # what the tests here share
collect_ignore_glob: list[str] = []
try:
    import jax  # noqa: F401
except ImportError:
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture
def rng() -> np.random.Generator:
    """New numbers in every run; a failed test shows the seed."""
    seed = secrets.randbits(32)
    print(f"seed {seed}")
    return np.random.default_rng(seed)
