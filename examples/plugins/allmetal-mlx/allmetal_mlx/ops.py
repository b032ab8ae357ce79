"""The arithmetic, once: the models and the kernels behind the bridge call the same functions.

Legend: T tokens, C channels in, N outputs, B sequences, Q queries, S keys, H query heads,
K key-value heads, D head dim.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import mlx.core as mx

GROUP = 32
"""Values of a row that share a scale in MLX's quantised layout."""


def rms_norm(x: mx.array, weight: mx.array, eps: float) -> mx.array:
    """Over the last axis, summed in float32 whatever the type."""
    return mx.fast.rms_norm(x, weight, eps)


def _sigmoid_linear(x: mx.array) -> mx.array:
    return x * mx.sigmoid(x)


def _gelu(x: mx.array) -> mx.array:
    return x * (1 + mx.erf(x / 2**0.5)) / 2


def _gelu_tanh(x: mx.array) -> mx.array:
    return 0.5 * x * (1 + mx.tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)))


ACTIVATIONS: Mapping[str, Callable[[mx.array], mx.array]] = {
    "silu": _sigmoid_linear,
    "gelu": _gelu,
    "gelu_tanh": _gelu_tanh,
    "relu": lambda x: mx.maximum(x, 0),
}


def gated(gate: mx.array, up: mx.array, activation: str) -> mx.array:
    """act(gate) * up, in float32."""
    wide = ACTIVATIONS[activation](gate.astype(mx.float32)) * up.astype(mx.float32)
    return wide.astype(gate.dtype)


def rotate(x: mx.array, cos: mx.array, sin: mx.array) -> mx.array:
    """x [T, heads, D] with cos and sin [T, 1, D / 2]: channels i and i + D / 2 turn together."""
    a, b = mx.split(x, 2, axis=-1)
    return mx.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)


def attend(
    q_BQHD: mx.array,
    k_BSKD: mx.array,
    v_BSKD: mx.array,
    seen: mx.array,
    scale: float,
    soft_cap: float | None = None,
) -> mx.array:
    """[B, Q, H, D]; `seen` [B, Q, S] says which keys a query sees, at least one."""
    q, k, v = (x.transpose(0, 2, 1, 3) for x in (q_BQHD, k_BSKD, v_BSKD))
    mask = seen[:, None]
    if soft_cap is not None or not mx.metal.is_available():
        # Only the GPU's kernel keeps its sums wide.
        q, k, v = (x.astype(mx.float32) for x in (q, k, v))
    if soft_cap is None:
        out = mx.fast.scaled_dot_product_attention(q, k, v, scale=scale, mask=mask)
    else:
        groups = q.shape[1] // k.shape[1]
        k, v = (mx.repeat(x, groups, axis=1) for x in (k, v))
        scores = soft_cap * mx.tanh((q * scale) @ k.transpose(0, 1, 3, 2) / soft_cap)
        out = mx.softmax(mx.where(mask, scores, -mx.inf), axis=-1) @ v
    return out.astype(q_BQHD.dtype).transpose(0, 2, 1, 3)


# ---- products ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Dense:
    """`weight` [N, C]."""

    weight: mx.array

    def __call__(self, x: mx.array) -> mx.array:
        return x @ self.weight.T


@dataclass(frozen=True, slots=True)
class Quantised:
    """`weight` [N, C * bits / 32] uint32, the first value lowest; `scales` and `biases`
    [N, C / group_size]: value * scale + bias."""

    weight: mx.array
    scales: mx.array
    biases: mx.array
    bits: int
    group_size: int

    def __call__(self, x: mx.array) -> mx.array:
        y = mx.quantized_matmul(
            x.astype(self.scales.dtype),
            self.weight,
            scales=self.scales,
            biases=self.biases,
            transpose=True,
            group_size=self.group_size,
            bits=self.bits,
        )
        return y.astype(x.dtype)


def quantised(weight: mx.array, scale: mx.array, bits: int) -> Quantised:
    """weight [N, C] int8 of `bits`-bit values and scale [N, groups] float32, one scale a group of
    the row, which is of 32, 64 or 128 values or cut into groups of 32 that share it."""
    rows, columns = weight.shape
    zero = 1 << (bits - 1)
    raised = (weight.astype(mx.int32) + zero).astype(mx.uint32)
    per_word = 32 // bits
    shifts = mx.arange(per_word, dtype=mx.uint32) * bits
    words = (raised.reshape(rows, columns // per_word, per_word) << shifts).sum(-1)
    size = columns // scale.shape[1]
    if size not in (32, 64, 128):
        scale, size = mx.repeat(scale, size // GROUP, axis=1), GROUP
    packed = Quantised(words.astype(mx.uint32), scale, -zero * scale, bits, size)
    mx.eval(packed.weight, packed.scales, packed.biases)
    return packed
