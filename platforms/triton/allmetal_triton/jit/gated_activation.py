"""act(gate) * up, a piece of a row a program."""

from __future__ import annotations

import triton
import triton.language as tl

from allmetal_triton.jit.early import let_next_begin, wait_for_last


@triton.jit
def activate(x, ACTIVATION: tl.constexpr):
    """x in float32."""
    if ACTIVATION == "silu":
        return x * tl.sigmoid(x)
    elif ACTIVATION == "gelu":
        return 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))
    elif ACTIVATION == "gelu_tanh":
        # 0.5 (1 + tanh(u)) = sigmoid(2 u), and the sigmoid loses no digits to the sum.
        return x * tl.sigmoid(1.5957691216057308 * x * (1.0 + 0.044715 * x * x))
    else:
        tl.static_assert(ACTIVATION == "relu")
        return tl.maximum(x, 0.0)


@triton.jit
def gated_activation(
    x,
    y,
    x_stride,
    DIM: tl.constexpr,
    BLOCK: tl.constexpr,
    ACTIVATION: tl.constexpr,
    EARLY: tl.constexpr,
):
    """x [T, 2 * DIM], gate then up, rows at `x_stride`; y [T, DIM] contiguous."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < DIM
    let_next_begin(EARLY)
    wait_for_last(EARLY)
    gate = tl.load(x + row * x_stride + at, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(x + row * x_stride + DIM + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(y + row * DIM + at, (activate(gate, ACTIVATION) * up).to(y.dtype.element_ty), inside)
