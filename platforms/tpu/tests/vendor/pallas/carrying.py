"""JAX functions on torch's tensors of the host, in place of TorchTPU's `jax_op`."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import torch

# numpy has none of these: their bytes are carried, and named anew on the other side.
_NARROW = {
    torch.bfloat16: ml_dtypes.bfloat16,
    torch.float8_e4m3fn: ml_dtypes.float8_e4m3fn,
    torch.float8_e5m2: ml_dtypes.float8_e5m2,
}


def to_jax(x: torch.Tensor) -> jax.Array:
    x = x.detach().contiguous()
    if x.dtype in _NARROW:
        raw = x.view(torch.uint8 if x.itemsize == 1 else torch.int16).numpy()
        return jnp.asarray(raw.view(_NARROW[x.dtype]))
    return jnp.asarray(x.numpy())


def to_torch(x: jax.Array) -> torch.Tensor:
    if x.dtype == jnp.bfloat16:
        return torch.from_numpy(np.array(x).view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(np.array(x))


def carried(name: str, function: Callable[..., jax.Array]) -> Callable[..., torch.Tensor]:
    compiled = jax.jit(function)
    return lambda *tensors: to_torch(compiled(*map(to_jax, tensors)))


def carry(monkeypatch: pytest.MonkeyPatch) -> None:
    """From here on, kernels that are built are called so."""
    for family in ("attention", "linear", "moe"):
        monkeypatch.setattr(f"allmetal_tpu.pallas.ops.{family}.torch_op", carried)
    monkeypatch.setattr("allmetal_tpu.pallas.bridge._is_installed", lambda package: True)
