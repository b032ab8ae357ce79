"""The conformance kit for authors of platforms, and what tests lay out machines and batches with."""

from __future__ import annotations
