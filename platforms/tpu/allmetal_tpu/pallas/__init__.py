"""Kernels written for the device with Pallas, JAX's language for kernels."""

from __future__ import annotations
