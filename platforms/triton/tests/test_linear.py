from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from allmetal.platform import reference
from allmetal.platform.contract import Supported, Unsupported
from allmetal.platform.specs import DenseWeight, IntWeight, LinearSpec

pytest.importorskip("triton", reason="needs triton")
from allmetal_triton.ops.linear import TritonLinear

SHAPES = [(1, 1), (7, 5), (100, 260), (513, 1024), (96, 1100), (40, 5000), (6200, 130)]


@pytest.mark.parametrize("num_tokens", [0, 1, 2, 5])
@pytest.mark.parametrize(("out_features", "in_features"), SHAPES)
def test_linear_agrees_with_float64(  # type: ignore[no-untyped-def]
    out_features, in_features, num_tokens, generator, target, device, near
) -> None:
    bias = bool((out_features + num_tokens) % 2)
    check("float16", out_features, in_features, num_tokens, bias, generator, target, device, near)


def test_every_dtype_agrees_with_float64(dtype, generator, target, device, near) -> None:  # type: ignore[no-untyped-def]
    for num_tokens in (1, 9):
        check(dtype, 130, 700, num_tokens, True, generator, target, device, near)


def check(  # type: ignore[no-untyped-def]
    dtype, out_features, in_features, num_tokens, bias, generator, target, device, near
) -> None:
    spec = LinearSpec(
        dtype=dtype,
        in_features=in_features,
        out_features=out_features,
        bias=bias,
        weight=DenseWeight(dtype=dtype),
    )
    kind = getattr(torch, dtype)
    weight = torch.randn(out_features, in_features, generator=generator).to(kind)
    # Rows of a wider tensor, as a slice of another layer's output is.
    wide = torch.randn(num_tokens, in_features + 8, generator=generator).to(kind).to(device)
    x = wide[:, :in_features]
    b = torch.randn(out_features, generator=generator).to(kind) if bias else None
    (exact,) = reference.kernels()["linear"]
    op = exact.build(replace(spec, dtype="float64"))
    expected = op(x.cpu().double(), op.pack({"weight": weight}), b)
    ours = TritonLinear(target)
    assert isinstance(ours.supports(spec), Supported)
    op = ours.build(spec)
    packed = op.pack({"weight": weight.to(device)})
    near(op(x, packed, None if b is None else b.to(device)), expected)


def test_a_refusal_says_why(target) -> None:  # type: ignore[no-untyped-def]
    spec = LinearSpec(
        dtype="float16", in_features=8, out_features=8, bias=False, weight=IntWeight()
    )
    answer = TritonLinear(target).supports(spec)
    assert isinstance(answer, Unsupported)
    assert "dense" in answer.reason
