"""Seam 1: how a step plan becomes tokens."""

from __future__ import annotations
