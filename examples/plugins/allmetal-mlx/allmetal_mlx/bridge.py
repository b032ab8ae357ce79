"""Between MLX's arrays and torch's host tensors.

Into MLX a copy is made.  Out of it torch sees MLX's own memory, which is evaluated first and lives
for as long as the tensor.
"""

from __future__ import annotations

import mlx.core as mx
import torch

DTYPES = {
    torch.float32: mx.float32,
    torch.bfloat16: mx.bfloat16,
    torch.float16: mx.float16,
    torch.int64: mx.int64,
    torch.int32: mx.int32,
    torch.uint8: mx.uint8,
    torch.int8: mx.int8,
}
TORCH = {there: here for here, there in DTYPES.items()}


def to_mlx(x: torch.Tensor) -> mx.array:
    """A copy.  numpy has no bfloat16, so its bits travel as integers."""
    if x.dtype is torch.bfloat16:
        return mx.array(x.contiguous().view(torch.int16).numpy()).view(mx.bfloat16)
    return mx.array(x.numpy())


def to_torch(x: mx.array) -> torch.Tensor:
    """MLX's memory, seen by torch.  Waits until it is computed."""
    dtype = TORCH[x.dtype]
    if x.size == 0:
        return torch.empty(x.shape, dtype=dtype)
    x = mx.contiguous(x)
    mx.eval(x)
    # MLX's stubs do not say that its arrays have Python's buffer interface.
    flat = torch.frombuffer(memoryview(x.view(mx.uint8).reshape(-1)), dtype=torch.uint8)  # type: ignore[arg-type]
    return flat.view(dtype).view(x.shape)
