"""Root mean square norm, one row a program."""

from __future__ import annotations

import triton
import triton.language as tl

from allmetal_triton.jit.early import let_next_begin, wait_for_last


@triton.jit
def rms_norm(
    x,
    residual,
    weight,
    y,
    s,
    x_stride,
    residual_stride,
    EPS: tl.constexpr,
    OFFSET: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK: tl.constexpr,
    RESIDUAL: tl.constexpr,
    CAST_BEFORE_WEIGHT: tl.constexpr,
    EARLY: tl.constexpr,
):
    """x, residual [T, DIM] rows at their strides; weight [DIM]; y, s [T, DIM] contiguous."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < DIM
    w = tl.load(weight + at, mask=inside, other=0.0).to(tl.float32) + OFFSET
    let_next_begin(EARLY)
    wait_for_last(EARLY)
    values = tl.load(x + row * x_stride + at, mask=inside, other=0.0)
    if RESIDUAL:
        added = tl.load(residual + row * residual_stride + at, mask=inside, other=0.0)
        # The sum is rounded before the norm sees it: it is what the next layer adds to.
        values = (values.to(tl.float32) + added.to(tl.float32)).to(x.dtype.element_ty)
        tl.store(s + row * DIM + at, values, mask=inside)
    values = values.to(tl.float32)
    normal = values * tl.rsqrt(tl.sum(values * values, axis=0) / DIM + EPS)
    if CAST_BEFORE_WEIGHT:
        normal = normal.to(y.dtype.element_ty).to(tl.float32)
    tl.store(y + row * DIM + at, (normal * w).to(y.dtype.element_ty), mask=inside)
