"""What Gluon calls differently from version to version: 3.6 with torch 2.11, 3.7 from 2.12 on."""

from __future__ import annotations

from typing import Any

from triton.experimental.gluon import language as gl

_gl: Any = gl
meet = _gl.barrier if hasattr(gl, "barrier") else _gl.thread_barrier
"""A barrier for all threads of a program, or of its partition."""
