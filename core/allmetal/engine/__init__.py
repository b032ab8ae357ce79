"""The engine: what runs next, and what becomes of it.  Requests in, token ids out; no torch."""

from __future__ import annotations
