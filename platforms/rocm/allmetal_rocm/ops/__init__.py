"""Kernels of this platform alone."""

from __future__ import annotations
