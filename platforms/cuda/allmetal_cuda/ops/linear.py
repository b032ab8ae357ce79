"""Dense linear layers through cuBLAS.

Few tokens are bound by reading N C weights; many by 2 T N C operations.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch.nn import functional

from allmetal.platform.contract import Support, Supported, Unsupported
from allmetal.platform.specs import DenseWeight, LinearOp, LinearSpec, PackedWeight

_DTYPES = ("bfloat16", "float16", "float32")


class CublasLinear:
    name = "cublas"

    def supports(self, spec: LinearSpec) -> Support:
        if not isinstance(spec.weight, DenseWeight):
            return Unsupported(f"takes dense weights, not {spec.weight.kind}")
        if spec.weight.dtype != spec.dtype:
            return Unsupported(f"takes weights in {spec.dtype}, not {spec.weight.dtype}")
        if spec.dtype not in _DTYPES:
            return Unsupported(f"dtype must be one of {', '.join(_DTYPES)}, not {spec.dtype}")
        return Supported(rank=20)

    def build(self, spec: LinearSpec) -> LinearOp:
        return _Op()


class _Op:
    def pack(self, weights: Mapping[str, torch.Tensor]) -> PackedWeight:
        return weights["weight"]

    def __call__(
        self, x: torch.Tensor, weight: PackedWeight, bias: torch.Tensor | None
    ) -> torch.Tensor:
        assert isinstance(weight, torch.Tensor)
        return functional.linear(x, weight, bias)
