"""Placeholder, replaced in the next commit."""

from __future__ import annotations
