"""Launches that begin before the one ahead of them has ended, where the device knows that.

Source: programmatic dependent launch, CUDA C++ programming guide.  Whatever a kernel does before it
waits must not depend on an earlier launch: weights and tables are nobody's output.  A kernel lets
the next begin at once: the next one's weights are on their way while this one still waits.  Only
what has no rest of weights to come, and is bound by memory itself, does so after its loads.
"""

from __future__ import annotations

import triton
import triton.language as tl

try:
    from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait
except ImportError:  # an older Triton, or one for devices that are never told to be early
    gdc_launch_dependents = gdc_wait = None


@triton.jit
def let_next_begin(EARLY: tl.constexpr):
    if EARLY:
        gdc_launch_dependents()


@triton.jit
def wait_for_last(EARLY: tl.constexpr):
    """What earlier launches have written may be read from here on."""
    if EARLY:
        gdc_wait()
