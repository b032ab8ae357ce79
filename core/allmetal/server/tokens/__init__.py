"""Text to token ids and back, without generating anything."""

from __future__ import annotations
