"""Launches that begin before the one ahead of them has ended, where the device knows that.

Source: programmatic dependent launch, CUDA C++ programming guide.  Whatever a kernel does before it
waits must not depend on an earlier launch: weights and tables are nobody's output.
"""

from __future__ import annotations

import triton
import triton.language as tl

try:
    from triton.language.extra import cuda as extra
except ImportError:  # a Triton for other devices, which are never told to be early
    extra = None


@triton.jit
def let_next_begin(EARLY: tl.constexpr):
    if EARLY:
        extra.gdc_launch_dependents()


@triton.jit
def wait_for_last(EARLY: tl.constexpr):
    """What earlier launches have written may be read from here on."""
    if EARLY:
        extra.gdc_wait()


@triton.jit
def fetch_early(lines, EARLY: tl.constexpr):
    """Bring the 128 bytes around each pointer into the device's cache."""
    if EARLY:
        tl.inline_asm_elementwise(
            "prefetch.global.L2 [$1]; mov.u32 $0, 0;", "=r,l", [lines], dtype=tl.int32,
            is_pure=False, pack=1)  # fmt: skip
