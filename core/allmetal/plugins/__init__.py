"""Hooks by which everything but platforms is announced."""

from __future__ import annotations
