"""Kernels and what surrounds them, in JAX: nothing here is imported before one is built."""

from __future__ import annotations
