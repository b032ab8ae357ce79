"""What is around every handler, outermost first; each file is one ASGI middleware."""

from __future__ import annotations
