"""act(gate) * up.  Source: Shazeer, arXiv:2002.05202."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import torch
from torch.nn import functional

from allmetal.platform.reference.kernel import (
    FLOAT_DTYPES,
    ReferenceKernel,
    accumulator,
    refuse_dtype,
)
from allmetal.platform.specs import GatedActivationOp, GatedActivationSpec

_ACTIVATIONS: Mapping[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "silu": functional.silu,
    "gelu": functional.gelu,
    "gelu_tanh": partial(functional.gelu, approximate="tanh"),
    "relu": functional.relu,
}


def _refuse(spec: GatedActivationSpec) -> str | None:
    if spec.activation not in _ACTIVATIONS:
        return f"activation must be one of {', '.join(_ACTIVATIONS)}, not {spec.activation}"
    return refuse_dtype(spec.dtype)


def _make(spec: GatedActivationSpec) -> GatedActivationOp:
    dtype, sums = FLOAT_DTYPES[spec.dtype], accumulator(spec.dtype)
    activate = _ACTIVATIONS[spec.activation]

    def gated_activation(x: torch.Tensor) -> torch.Tensor:
        x = x.to(sums)
        return (activate(x[:, : spec.dim]) * x[:, spec.dim :]).to(dtype)

    return gated_activation


KERNEL: ReferenceKernel[GatedActivationSpec, GatedActivationOp] = ReferenceKernel(_refuse, _make)
