"""Tests that need triton-ascend, in an environment of its own: it replaces torch's Triton."""

from __future__ import annotations

from importlib.util import find_spec

if find_spec("ascendnpuir") is None:
    collect_ignore_glob = ["test_*.py"]
