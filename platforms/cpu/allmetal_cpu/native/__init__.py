"""Kernels of the C++ library in csrc/, called through ctypes."""

from __future__ import annotations
