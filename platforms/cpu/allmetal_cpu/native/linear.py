"""y = x W^T + b over dense weights where they lie, row-major as in the checkpoint: no second copy,
and a weight that is also an embedding table is shared.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from allmetal.platform.specs import DenseWeight, LinearOp, LinearSpec, PackedWeight
from allmetal_cpu.native import pages
from allmetal_cpu.native.kernel import NativeKernel, refuse_dtype
from allmetal_cpu.native.library import Library, pointer


def _refuse(spec: LinearSpec) -> str | None:
    if not isinstance(spec.weight, DenseWeight):
        return f"multiplies dense weights, not {spec.weight.kind}"
    if spec.weight.dtype != spec.dtype:
        return f"weights are {spec.weight.dtype}, activations {spec.dtype}"
    return refuse_dtype(spec.dtype)


class _Dense:
    # M tokens, N outputs, C channels
    def __init__(self, spec: LinearSpec, library: Library) -> None:
        self._run = library.function("linear", spec.dtype)
        self._shape = (spec.out_features, spec.in_features)

    def pack(self, weights: Mapping[str, torch.Tensor]) -> PackedWeight:
        weight = weights["weight"].contiguous()
        assert weight.shape == self._shape
        pages.prefer_large(weight)
        return weight

    def __call__(
        self, x: torch.Tensor, weight: PackedWeight, bias: torch.Tensor | None
    ) -> torch.Tensor:
        assert isinstance(weight, torch.Tensor)
        x = x.contiguous()
        y = x.new_empty(x.shape[0], self._shape[0])
        self._run(
            y.data_ptr(), x.data_ptr(), weight.data_ptr(), pointer(bias), x.shape[0], *self._shape
        )
        return y


LINEAR: NativeKernel[LinearSpec, LinearOp] = NativeKernel(_refuse, _Dense)
