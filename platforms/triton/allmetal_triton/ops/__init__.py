"""The host's side of each kernel: what it supports, how it is laid out and launched."""

from __future__ import annotations
