"""act(gate) * up.  Bytes moved: 3 T dim elements."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton

from allmetal.platform.contract import Support, Supported, Unsupported
from allmetal.platform.specs import GatedActivationOp, GatedActivationSpec
from allmetal_triton.jit.gated_activation import gated_activation
from allmetal_triton.target import Target, refuse_dtype

_BLOCK = 1024
_ACTIVATIONS = ("silu", "gelu", "gelu_tanh", "relu")


@dataclass(frozen=True, slots=True)
class TritonGatedActivation:
    target: Target
    name: str = "triton_gated_activation"

    def supports(self, spec: GatedActivationSpec) -> Support:
        if reason := refuse_dtype(self.target, spec.dtype):
            return Unsupported(reason)
        if spec.activation not in _ACTIVATIONS:
            known = ", ".join(_ACTIVATIONS)
            return Unsupported(f"activation must be one of {known}, not {spec.activation}")
        return Supported(rank=10)

    def build(self, spec: GatedActivationSpec) -> GatedActivationOp:
        block = min(_BLOCK, triton.next_power_of_2(spec.dim))
        num_blocks = triton.cdiv(spec.dim, block)
        options = self.target.launch_options

        def op(x: torch.Tensor) -> torch.Tensor:
            y = torch.empty(x.shape[0], spec.dim, dtype=x.dtype, device=x.device)
            if x.shape[0]:
                gated_activation[(x.shape[0], num_blocks)](
                    x,
                    y,
                    x.stride(0),
                    DIM=spec.dim,
                    BLOCK=block,
                    ACTIVATION=spec.activation,
                    num_warps=4,
                    **options,
                )
            return y

        return op
