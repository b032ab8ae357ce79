"""Kernels that only NVIDIA's libraries or compilers take."""

from __future__ import annotations
