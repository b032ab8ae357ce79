"""act(gate) * up with torch's operators."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F

from allmetal.platform.contract import Support, Supported
from allmetal.platform.specs import Activation, GatedActivationOp, GatedActivationSpec


def _gelu_tanh(x: torch.Tensor) -> torch.Tensor:
    return F.gelu(x, approximate="tanh")


ACTIVATIONS: dict[Activation, Callable[[torch.Tensor], torch.Tensor]] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": _gelu_tanh,
    "relu": F.relu,
}


class TorchGatedActivation:
    name = "torch"

    def supports(self, spec: GatedActivationSpec) -> Support:
        return Supported(rank=20)

    def build(self, spec: GatedActivationSpec) -> GatedActivationOp:
        act, dim = ACTIVATIONS[spec.activation], spec.dim

        def run(x: torch.Tensor) -> torch.Tensor:
            return act(x[:, :dim]).mul_(x[:, dim:])

        return run
