"""Kernels in plain torch that XLA compiles well: no shape depends on a value, nothing waits for the
device, and what XLA lacks (or does in turn where it could do it at once) is written otherwise."""

from __future__ import annotations
