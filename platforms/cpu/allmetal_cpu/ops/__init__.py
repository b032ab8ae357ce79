"""Kernels written with torch's operators, one file a family: they run wherever torch does."""

from __future__ import annotations
