"""HTTP in front of an `AsyncEngine`."""

from __future__ import annotations
