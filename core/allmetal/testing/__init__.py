"""The conformance kit for authors of platforms, and builders of machines and batches."""

from __future__ import annotations
