"""Tokens to 8 bits, floating point or integers, one a program."""

from __future__ import annotations

import triton
import triton.language as tl

from allmetal_triton.jit.early import let_next_begin, wait_for_last


@triton.jit
def round_tokens(
    x,
    y,
    scale,
    x_stride,
    MOST: tl.constexpr,
    C: tl.constexpr,
    BLOCK: tl.constexpr,
    EARLY: tl.constexpr,
):
    """x [T, C] rows at `x_stride`; y [T, C] in a narrow type whose largest is MOST, and scale [T]
    float32, with x about y * scale."""
    let_next_begin(EARLY)
    wait_for_last(EARLY)
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < C
    values = tl.load(x + row * x_stride + at, mask=inside, other=0.0).to(tl.float32)
    # A token of zeros has some largest value, not 0: it is divided by.  And multiplied first, since
    # a scale is rounded, and what lies in the middle of two numbers of the type is to stay there.
    largest = tl.maximum(tl.max(tl.abs(values), axis=0), 1.1754943508222875e-38)
    rounded = tl.clamp(tl.div_rn(values * MOST, largest), -MOST, MOST)
    if y.dtype.element_ty == tl.int8:  # to the nearest, of two to the even one
        rounded = (rounded + 12582912.0) - 12582912.0  # 1.5 * 2^23: no bit is left for a fraction
    tl.store(y + row * C + at, rounded.to(y.dtype.element_ty), mask=inside)
    tl.store(scale + row, largest / MOST)


@triton.jit
def round_groups(
    x,
    y,
    scale,
    x_stride,
    scale_stride,
    MOST: tl.constexpr,
    C: tl.constexpr,
    SIZE: tl.constexpr,
    GROUPS: tl.constexpr,
    EARLY: tl.constexpr,
):
    """The same with a scale for SIZE channels of a token, at scale + group * scale_stride + token;
    GROUPS of them a program."""
    let_next_begin(EARLY)
    wait_for_last(EARLY)
    row = tl.program_id(0).to(tl.int64)
    group = tl.program_id(1) * GROUPS + tl.arange(0, GROUPS)
    at = group[:, None] * SIZE + tl.arange(0, SIZE)[None, :]
    inside = at < C
    values = tl.load(x + row * x_stride + at, mask=inside, other=0.0).to(tl.float32)
    largest = tl.maximum(tl.max(tl.abs(values), axis=1), 1.1754943508222875e-38)
    rounded = tl.clamp(tl.div_rn(values * MOST, largest[:, None]), -MOST, MOST)
    if y.dtype.element_ty == tl.int8:  # to the nearest, of two to the even one
        rounded = (rounded + 12582912.0) - 12582912.0  # 1.5 * 2^23: no bit is left for a fraction
    tl.store(y + row * C + at, rounded.to(y.dtype.element_ty), mask=inside)
    tl.store(scale + group * scale_stride + row, largest / MOST, mask=group * SIZE < C)
