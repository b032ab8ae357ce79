"""act(gate) * up by `npu_swiglu` and `npu_geglu`."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from allmetal.platform.contract import Support, Supported, Unsupported
from allmetal.platform.specs import Activation, GatedActivationOp, GatedActivationSpec
from allmetal_ascend.chips import Chip
from allmetal_ascend.ops.dtypes import FLOAT, refuse_dtype

_GELU: dict[Activation, int] = {"gelu": 0, "gelu_tanh": 1}


def refuse_activation(activation: Activation) -> str | None:
    known = ("silu", *_GELU)
    if activation in known:
        return None
    return f"activation must be {' or '.join(known)}, not {activation}"


def gate(x: torch.Tensor, activation: Activation) -> torch.Tensor:
    """x [T, 2 * C], gates in front -> [T, C]."""
    if activation == "silu":
        y: torch.Tensor = torch.ops.npu.npu_swiglu(x, dim=-1)
        return y
    approximate = _GELU[activation]
    # Its own default is to activate what lies behind.
    y = torch.ops.npu.npu_geglu(x, dim=-1, approximate=approximate, activate_left=True)[0]
    return y


@dataclass(frozen=True, slots=True)
class NpuGatedActivation:
    chip: Chip
    name: str = "npu_gated_activation"

    def supports(self, spec: GatedActivationSpec) -> Support:
        refused = refuse_dtype(self.chip, spec.dtype, FLOAT) or refuse_activation(spec.activation)
        if refused is None and not self.chip.fused_attention:
            refused = f"npu_swiglu is not documented for {self.chip.arch}"
        return Supported() if refused is None else Unsupported(refused)

    def build(self, spec: GatedActivationSpec) -> GatedActivationOp:
        def gated_activation(x: torch.Tensor) -> torch.Tensor:
            if not x.shape[0]:
                return x.new_empty(0, spec.dim)
            return gate(x.contiguous(), spec.activation)

        return gated_activation
