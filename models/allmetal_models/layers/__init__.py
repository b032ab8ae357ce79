"""Neutral layers: each binds its kernels and asks for its tensors at construction."""

from __future__ import annotations
