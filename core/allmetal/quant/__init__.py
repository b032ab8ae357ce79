"""Checkpoint formats of weights, and what they decode to.  No kernels are here."""

from __future__ import annotations
