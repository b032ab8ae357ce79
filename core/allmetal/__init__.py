"""allmetal: one LLM engine, all metal."""

from __future__ import annotations

__version__ = "0.1.0"
