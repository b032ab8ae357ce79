"""The reference matrix products against float64."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from allmetal.platform.contract import Unsupported
from allmetal.platform.reference import kernels, linear
from allmetal.platform.specs import DenseWeight, Float8Weight, GGUFWeight, IntWeight, LinearSpec

(KERNEL,) = kernels()["linear"]
C, N = 48, 37
SPEC = LinearSpec(
    dtype="float32", in_features=C, out_features=N, bias=False, weight=DenseWeight(dtype="float32")
)


def difference(got: torch.Tensor, expected: torch.Tensor) -> float:
    return float((got.double() - expected).norm() / expected.norm())


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("stored", ["float32", "bfloat16"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("num_tokens", [0, 1, 7])
def test_dense(dtype: str, stored: str, bias: bool, num_tokens: int) -> None:
    spec = replace(SPEC, dtype=dtype, bias=bias, weight=DenseWeight(dtype=stored))
    x = torch.randn(num_tokens, C).to(getattr(torch, dtype))
    weight = torch.randn(N, C).to(getattr(torch, stored))
    b = torch.randn(N).to(x.dtype) if bias else None
    op = KERNEL.build(spec)
    got = op(x, op.pack({"weight": weight}), b)
    expected = x.double() @ weight.double().T + (0 if b is None else b.double())
    assert (got.shape, got.dtype) == ((num_tokens, N), x.dtype)
    if num_tokens:
        assert difference(got, expected) < max(torch.finfo(x.dtype).eps, 1e-6)


def test_a_large_weight_is_expanded_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear, "_ELEMENTS_AT_ONCE", 5 * C)
    x, weight = torch.randn(3, C), torch.randn(N, C)
    op = KERNEL.build(SPEC)
    got = op(x, op.pack({"weight": weight}), None)
    assert difference(got, x.double() @ weight.double().T) < 1e-6


@pytest.mark.parametrize("group_size", [0, 16])
@pytest.mark.parametrize("bits", [4, 8])
def test_int_weight_only(bits: int, group_size: int) -> None:
    limit = 2 ** (bits - 1)
    values = torch.randint(-limit, limit, (N, C), dtype=torch.int8)
    scale = torch.rand(N, C // (group_size or C))
    weight = IntWeight(bits=bits, group_size=group_size)
    op = KERNEL.build(replace(SPEC, weight=weight))
    x = torch.randn(4, C)
    got = op(x, op.pack({"weight": values, "scale": scale}), None)
    expanded = values.double().view(N, -1, group_size or C) * scale.double()[..., None]
    assert difference(got, x.double() @ expanded.view(N, C).T) < 1e-6


def test_int8_activations_are_quantised_per_token() -> None:
    values = torch.randint(-127, 128, (N, C), dtype=torch.int8)
    scale = torch.rand(N, 1)
    op = KERNEL.build(replace(SPEC, weight=IntWeight(act_dtype="int8")))
    x = torch.randn(4, C) * torch.tensor([1e-3, 1.0, 1e3, 0.0])[:, None]
    got = op(x, op.pack({"weight": values, "scale": scale}), None)
    for row in range(3):
        token_scale = float(x[row].abs().max()) / 127
        whole = torch.tensor([round(float(c) / token_scale) for c in x[row]])
        assert whole.abs().max() == 127
        product = (values.long() * whole).sum(1).double()  # in integers
        assert difference(got[row], product * token_scale * scale[:, 0]) < 1e-5
    assert (got[3] == 0).all()


@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e5m2"])
def test_float8_weight_only(name: str) -> None:
    values, scale = torch.randn(N, C).to(getattr(torch, name)), torch.rand(N, 1)
    op = KERNEL.build(replace(SPEC, weight=Float8Weight(dtype=name)))
    x = torch.randn(4, C)
    got = op(x, op.pack({"weight": values, "scale": scale}), None)
    assert difference(got, x.double() @ (values.double() * scale.double()).T) < 1e-6


def test_float8_activations_are_rounded_per_token() -> None:
    values, scale = torch.randn(N, C).to(torch.float8_e4m3fn), torch.rand(N, 1)
    op = KERNEL.build(replace(SPEC, weight=Float8Weight(act_dtype="float8_e4m3fn")))
    x = torch.randn(4, C) * torch.tensor([1e-3, 1.0, 1e3, 0.0])[:, None]
    got = op(x, op.pack({"weight": values, "scale": scale}), None)
    for row in range(3):
        largest = x[row].abs().max()
        rounded = (x[row] * 448 / largest).to(torch.float8_e4m3fn).double()
        assert rounded.abs().max() == 448
        product = values.double() @ rounded * (largest.double() / 448)
        assert difference(got[row], product * scale[:, 0].double()) < 1e-5
    assert (got[3] == 0).all()


def blocks(values: torch.Tensor, scale: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    """values * scale, a loop a block."""
    made = values.double()
    for i in range(scale.shape[0]):
        for j in range(scale.shape[1]):
            part = slice(i * rows, (i + 1) * rows), slice(j * columns, (j + 1) * columns)
            made[part] *= scale[i, j].double()
    return made


def test_float8_with_a_scale_a_block_rounds_groups_of_channels() -> None:
    rows, columns = 16, 20  # neither divides N or C
    values, scale = torch.randn(N, C).to(torch.float8_e4m3fn), torch.rand(3, 3) + 0.1
    x = torch.randn(4, C) * torch.tensor([1e-3, 1.0, 1e3, 0.0])[:, None]
    x[:, 5] *= 100
    dense = blocks(values, scale, rows, columns)
    for act in (None, "float8_e4m3fn"):
        weight = Float8Weight(act_dtype=act, block=(rows, columns))
        op = KERNEL.build(replace(SPEC, weight=weight))
        got = op(x, op.pack({"weight": values, "scale": scale}), None)
        rounded = x.double()
        for start in range(0, C, columns) if act else ():
            part = rounded[:, start : start + columns]
            factor = part.abs().amax(1, keepdim=True).clamp_min(1e-30) / 448
            part.copy_((part / factor).float().to(torch.float8_e4m3fn).double() * factor)
        assert difference(got, rounded @ dense.T) < 1e-5
        assert (got[3] == 0).all()


def test_what_lies_between_two_float8_numbers_is_rounded_to_the_even_one() -> None:
    """1.0625 of a largest value 1.75 times a power of 2, and of others that 7 divides."""
    op = KERNEL.build(replace(SPEC, weight=Float8Weight(act_dtype="float8_e4m3fn")))
    values = torch.eye(N, C).to(torch.float8_e4m3fn)
    packed = op.pack({"weight": values, "scale": torch.ones(N, 1)})
    for largest in (1.75, 1.3125, 1.09375, 1.53125):  # 7, 21, 35 and 49, over powers of 2
        x = torch.zeros(1, C)
        x[0, 0], x[0, 1] = largest, largest * 17 / 28  # 448 * 17 / 28 = 272, between 256 and 288
        got = op(x, packed, None)
        assert torch.allclose(got[0, 1] / largest, torch.tensor(256 / 448), rtol=1e-5), largest


def test_refusals_say_why() -> None:
    for change, why in (
        ({"dtype": "int8"}, "dtype"),
        ({"weight": DenseWeight(dtype="int4")}, "dtype"),
        ({"weight": IntWeight(bits=1)}, "bits"),
        ({"weight": IntWeight(group_size=32)}, "multiple of group_size"),
        ({"weight": IntWeight(act_dtype="float8_e4m3fn")}, "act_dtype"),
        ({"weight": Float8Weight(dtype="float8_e8m0fnu")}, "8-bit weights"),
        ({"weight": Float8Weight(act_dtype="int8")}, "act_dtype"),
        ({"weight": GGUFWeight(type="Q9_Z")}, "GGML"),
    ):
        answer = KERNEL.supports(replace(SPEC, **change))
        assert isinstance(answer, Unsupported)
        assert why in answer.reason
