"""y = x W^T + b with oneDNN's packed weights, and with torch's int8 products."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import cast

import torch

from allmetal.platform.contract import Support, Supported, Unsupported
from allmetal.platform.specs import (
    DenseWeight,
    GGUFWeight,
    IntWeight,
    LinearOp,
    LinearSpec,
    PackedWeight,
)
from allmetal.quant.ggml import BLOCKS
from allmetal.quant.gguf import dequantize


class OneDNNLinear:
    """Dense weights in oneDNN's blocked layout: a copy of the weight, made once."""

    name = "onednn"

    def supports(self, spec: LinearSpec) -> Support:
        if not isinstance(spec.weight, DenseWeight):
            return Unsupported(f"multiplies dense weights, not {spec.weight.kind}")
        if spec.weight.dtype != spec.dtype:
            return Unsupported(f"weights are {spec.weight.dtype}, activations {spec.dtype}")
        if spec.dtype not in ("bfloat16", "float32"):
            return Unsupported(f"packs bfloat16 and float32, not {spec.dtype}")
        if not torch.backends.mkldnn.is_available():
            return Unsupported("this torch was built without oneDNN")
        if spec.dtype == "bfloat16" and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
            return Unsupported("oneDNN needs AVX-512 or Arm bf16 for bfloat16")
        return Supported(rank=20)

    def build(self, spec: LinearSpec) -> LinearOp:
        return _OneDNN()


class _OneDNN:
    def pack(self, weights: Mapping[str, torch.Tensor]) -> PackedWeight:
        # Packed for one row: the layout oneDNN chooses then is fast for many as well.
        weight = weights["weight"].contiguous()
        return torch.ops.mkldnn._reorder_linear_weight(weight, 1)

    def __call__(
        self, x: torch.Tensor, weight: PackedWeight, bias: torch.Tensor | None
    ) -> torch.Tensor:
        y = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
        return cast("torch.Tensor", y)


class TorchInt8Linear:
    """int8 weights with one scale a row; activations as they are."""

    name = "torch_int8"

    def supports(self, spec: LinearSpec) -> Support:
        weight = spec.weight
        if not isinstance(weight, IntWeight):
            return Unsupported(f"multiplies int weights, not {weight.kind}")
        if weight.bits != 8:
            return Unsupported(f"multiplies 8-bit weights, not {weight.bits}-bit ones")
        if weight.group_size:
            return Unsupported(f"takes one scale a row, not one per {weight.group_size} channels")
        if weight.act_dtype is not None:
            return Unsupported(f"keeps activations in {spec.dtype}, not {weight.act_dtype}")
        if spec.dtype not in ("bfloat16", "float32", "float16"):
            return Unsupported(f"activations must be floating point, not {spec.dtype}")
        if spec.in_features % 32:
            # torch reads whole vectors, past the end of a row.
            return Unsupported(f"in_features must be a multiple of 32, not {spec.in_features}")
        return Supported(rank=20)

    def build(self, spec: LinearSpec) -> LinearOp:
        return _TorchInt8()


class _TorchInt8:
    # In float32: in a narrower type torch rounds the scales and the sums, before the bias is added.

    def pack(self, weights: Mapping[str, torch.Tensor]) -> PackedWeight:
        return weights["weight"].contiguous(), weights["scale"].reshape(-1).float()

    def __call__(
        self, x: torch.Tensor, weight: PackedWeight, bias: torch.Tensor | None
    ) -> torch.Tensor:
        values, scale = cast("tuple[torch.Tensor, torch.Tensor]", weight)
        y = torch._weight_int8pack_mm(x.float(), values, scale)
        return (y if bias is None else y.add_(bias)).to(x.dtype)


class ExpandedLinear:
    """GGML blocks, and integers no other kernel takes, expanded to dense weights at load.

    Fast to compute and exact to the format, and as large as an unquantised model.
    """

    name = "expanded"

    def supports(self, spec: LinearSpec) -> Support:
        weight = spec.weight
        if isinstance(weight, DenseWeight):
            return Unsupported("expands quantised weights; this one is dense")
        if not isinstance(weight, IntWeight | GGUFWeight):
            return Unsupported(f"expands integers and GGML blocks, not {weight.kind}")
        if isinstance(weight, IntWeight):
            if weight.act_dtype is not None:
                return Unsupported(f"keeps activations in {spec.dtype}, not {weight.act_dtype}")
            if not weight.group_size and spec.dtype != "float32":
                return Unsupported(f"{spec.dtype} would lose part of what 8 bits and a scale hold")
        expanded = OneDNNLinear().supports(_dense(spec))
        if isinstance(expanded, Unsupported):
            return expanded
        if isinstance(weight, GGUFWeight) and weight.type not in BLOCKS:
            return Unsupported(f"there is no formula for GGML type {weight.type}")
        return Supported(rank=40)

    def build(self, spec: LinearSpec) -> LinearOp:
        return _Expanded(spec, OneDNNLinear().build(_dense(spec)))


def _dense(spec: LinearSpec) -> LinearSpec:
    return replace(spec, weight=DenseWeight(dtype=spec.dtype))


class _Expanded:
    def __init__(self, spec: LinearSpec, dense: LinearOp) -> None:
        self._spec = spec
        self._dense = dense
        self._dtype: torch.dtype = getattr(torch, spec.dtype)

    def pack(self, weights: Mapping[str, torch.Tensor]) -> PackedWeight:
        stored, weight = weights["weight"], self._spec.weight
        if isinstance(weight, GGUFWeight):
            expanded = dequantize(stored, weight.type, self._dtype)
        else:
            assert isinstance(weight, IntWeight)
            scale = weights["scale"].repeat_interleave(
                weight.group_size or self._spec.in_features, dim=1
            )
            expanded = (stored.float() * scale).to(self._dtype)
        return self._dense.pack({"weight": expanded})

    def __call__(
        self, x: torch.Tensor, weight: PackedWeight, bias: torch.Tensor | None
    ) -> torch.Tensor:
        return self._dense(x, weight, bias)
