"""Kernels from the package `vllm-xpu-kernels`, where it is installed.

An optional provider of what it does in one launch and out of place.  Not taken: its rotation and
its norms with a residual write over what they are given.
"""

from __future__ import annotations
