"""act(gate) * up in one pass."""

from __future__ import annotations

import torch

from allmetal.platform.specs import Activation, GatedActivationOp, GatedActivationSpec
from allmetal_cpu.native.kernel import NativeKernel, refuse_dtype
from allmetal_cpu.native.library import Library

NUMBERS: dict[Activation, int] = {"silu": 0, "gelu": 1, "gelu_tanh": 2, "relu": 3}


def _make(spec: GatedActivationSpec, library: Library) -> GatedActivationOp:
    function = library.function("gated_activation", spec.dtype)
    dim, activation = spec.dim, NUMBERS[spec.activation]

    def run(x: torch.Tensor) -> torch.Tensor:
        x = x.contiguous()
        y = x.new_empty(x.shape[0], dim)
        function(y.data_ptr(), x.data_ptr(), x.shape[0], dim, activation)
        return y

    return run


GATED_ACTIVATION: NativeKernel[GatedActivationSpec, GatedActivationOp] = NativeKernel(
    lambda spec: refuse_dtype(spec.dtype), _make
)
