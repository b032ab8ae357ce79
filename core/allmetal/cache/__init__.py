"""Paged KV cache, as ints: the pool of blocks, prefix reuse, and each sequence's tables."""

from __future__ import annotations
