"""8-bit weights: the codes and scales that CDNA 3 is given stand for the checkpoint's values."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from allmetal.platform import reference
from allmetal.platform.contract import DeviceInfo, Supported, Unsupported
from allmetal.platform.specs import DenseWeight, Float8Weight, LinearSpec

pytest.importorskip("triton", reason="needs triton")
from allmetal_rocm.kernels import target
from allmetal_rocm.ops.scaled_linear import ScaledLinear
from allmetal_triton.interpreter import mend

E4M3 = "float8_e4m3fn"
SPEC = LinearSpec(
    dtype="bfloat16",
    in_features=256,
    out_features=32,
    bias=True,
    weight=Float8Weight(dtype=E4M3, act_dtype=E4M3),
)


def product(
    x: torch.Tensor,
    w: torch.Tensor,
    *,
    scale_a: torch.Tensor,
    scale_b: torch.Tensor,
    out_dtype: torch.dtype,
) -> torch.Tensor:
    """What `torch._scaled_mm` is documented to compute, on any host."""
    assert x.dtype == w.dtype
    assert not w.is_contiguous()  # the second operand lies by columns
    assert (scale_a.shape, scale_b.shape) == ((len(x), 1), (1, w.shape[1]))
    return ((x.float() @ w.float()) * scale_a * scale_b).to(out_dtype)


def kernel(arch: str) -> ScaledLinear:
    here = target(DeviceInfo(index=0, name="", total_memory=0, arch=arch))
    return ScaledLinear(arch, here, product)


@pytest.mark.parametrize("arch", ["gfx942", "gfx950", "gfx1201"])
def test_every_code_keeps_its_value(arch: str) -> None:
    codes = torch.arange(256, dtype=torch.uint8).repeat(32, 1)
    codes[(codes & 0x7F) == 0x7F] = 0  # no number, in either format
    weight, scale = codes.view(torch.float8_e4m3fn), torch.rand(32, 1)

    op: Any = kernel(arch).build(SPEC)
    packed, packed_scale = op.pack({"weight": weight, "scale": scale})

    kind = torch.float8_e4m3fnuz if arch == "gfx942" else torch.float8_e4m3fn
    assert packed.dtype == kind
    assert torch.equal(packed.float() * packed_scale.t(), weight.float() * scale)


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs the interpreter")
@pytest.mark.parametrize("arch", ["gfx942", "gfx950"])
def test_products_are_the_references(arch: str) -> None:
    """The interpreter knows no bfloat16, so the op is given what the spec would refuse."""
    mend()
    spec = replace(SPEC, dtype="float16")
    weight = torch.randn(32, 256).to(torch.float8_e4m3fn)
    given = {"weight": weight, "scale": torch.rand(32, 1)}
    x, bias = torch.randn(5, 256).half(), torch.randn(32).half()
    (exact,) = reference.kernels()["linear"]
    op = exact.build(spec)
    expected = op(x, op.pack(given), bias)

    ours = kernel(arch).build(spec)
    y = ours(x, ours.pack(given), bias)

    assert (y - expected).abs().max() < 4e-3 * expected.abs().max()
    assert ours(x[:0], ours.pack(given), bias).shape == (0, 32)


def test_a_refusal_says_why() -> None:
    for spec, arch, told in (
        (SPEC, "gfx90a", "gfx90a has no matrix instructions for 8-bit"),
        (SPEC, "", "an unknown architecture has no"),
        (replace(SPEC, dtype="float16"), "gfx942", "dtype must be bfloat16"),
        (replace(SPEC, in_features=250), "gfx942", "must be multiples of 16"),
        (replace(SPEC, weight=DenseWeight(dtype="bfloat16")), "gfx942", "not dense"),
        (replace(SPEC, weight=Float8Weight()), "gfx950", "activations in float8_e4m3fn"),
    ):
        answer = kernel(arch).supports(spec)
        assert isinstance(answer, Unsupported)
        assert told in answer.reason
    assert isinstance(kernel("gfx942").supports(SPEC), Supported)
