"""Products of few tokens on Hopper: on the GPU, or at least planned and compiled."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from allmetal.platform import reference
from allmetal.platform.contract import Supported, Unsupported
from allmetal.platform.specs import DenseWeight, GGUFWeight, LinearSpec

pytest.importorskip("triton", reason="needs triton")
from allmetal_cuda.ops.hopper_linear import MOST_TOKENS_OF_SMALL, HopperLinear, by_rows, plan
from allmetal_triton.target import Target

HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability()[0] == 9
CORES = 132
MEMORY = 232_448
SPEC = LinearSpec(
    dtype="bfloat16",
    in_features=4096,
    out_features=6144,
    bias=False,
    weight=DenseWeight(dtype="bfloat16"),
)
# (in, out): few steps and many, ragged ends, one tile of outputs and more of them than cores.
SHAPES = [
    (8, 5),
    (264, 100),
    (96, 96),
    (4096, 4096),
    (3072, 1024),
    (14336, 520),
    (1000, 8000),
    (1000, 9000),
]


def target(*, early: bool = True) -> Target:
    return Target(num_cores=lambda: CORES, shared_memory=MEMORY, dot_rows=64, early=early)


@pytest.mark.skipif(not HOPPER, reason="needs a Hopper GPU")
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize(("in_features", "out_features"), SHAPES)
def test_few_tokens_agree_with_float64(dtype: str, in_features: int, out_features: int) -> None:
    generator = torch.Generator()
    print("seed", generator.seed())
    kind = getattr(torch, dtype)
    spec = replace(
        SPEC,
        dtype=dtype,
        weight=DenseWeight(dtype=dtype),
        in_features=in_features,
        out_features=out_features,
        bias=bool(out_features % 8),
    )
    weight = torch.randn(out_features, in_features, generator=generator).to(kind)
    bias = torch.randn(out_features, generator=generator).to(kind) if spec.bias else None
    (exact,) = reference.kernels()["linear"]
    wide = exact.build(replace(spec, dtype="float64"))
    expect = wide.pack({"weight": weight})
    op = HopperLinear(target()).build(spec)
    packed = op.pack({"weight": weight.cuda()})
    for num_tokens in (
        0,
        1,
        2,
        3,
        16,
        17,
        32,
        50,
        64,
        100,
        128,
        129,
        200,
        MOST_TOKENS_OF_SMALL,
        300,
    ):
        # Rows of a wider tensor, as a slice of another layer's output is.
        x = torch.randn(num_tokens, in_features + 8, generator=generator).to(kind)
        expected = wide(x[:, :in_features].double(), expect, bias)
        given = x.cuda()[:, :in_features], packed, None if bias is None else bias.cuda()
        for _ in range(2):  # the counters of the first call are ready for the second
            y = op(*given)
            assert y.dtype == kind
            assert y.shape == (num_tokens, out_features)
            error = (y.double().cpu() - expected).norm() / expected.norm().clamp_min(1e-9)
            assert error < (5e-3 if dtype == "bfloat16" else 1e-3), num_tokens
        assert torch.equal(y, op(*given))  # parts are added up in one order


@pytest.mark.parametrize("out_features", [1, 1024, 4096, 6144, 8448, 8449, 28672, 151_936])
@pytest.mark.parametrize("in_features", [8, 128, 1024, 4096, 14336, 28672])
def test_plans_fit_the_core(in_features: int, out_features: int) -> None:
    for num_tokens in range(1, MOST_TOKENS_OF_SMALL + 1):
        how = plan(in_features, out_features, num_tokens, CORES)
        if how is None:
            continue
        tiles = -(-out_features // how.bn) * -(-num_tokens // how.bt)
        steps = -(-in_features // how.bk)
        assert 1 <= how.stages <= steps // how.splits
        assert how.stages * (how.bn + how.bt) * how.bk * 2 + 1024 <= MEMORY
        # Results pass through the weights' part of the ring.
        assert how.bn * how.bt * 4 <= how.stages * how.bn * how.bk * 2
        assert how.splits == 1 or tiles * how.splits <= CORES  # each tile has a counter


def test_many_tokens_and_many_outputs_are_left_to_the_library() -> None:
    assert plan(4096, 28672, 128, CORES) is None
    assert plan(4096, 28672, 64, CORES) is not None
    assert plan(4096, 4096, 128, CORES) is not None
    assert plan(4096, 4096, 129, CORES) is None
    assert plan(1024, 6144, 256, CORES) is not None


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        (replace(SPEC, dtype="float32", weight=DenseWeight(dtype="float32")), "not float32"),
        (replace(SPEC, in_features=100), "in_features must be a multiple of 8, not 100"),
        (replace(SPEC, weight=DenseWeight(dtype="float16")), "not float16"),
        (replace(SPEC, weight=GGUFWeight(type="Q4_K")), "dense"),
    ],
)
def test_a_refusal_says_why(spec: LinearSpec, told: str) -> None:
    answer = HopperLinear(target()).supports(spec)
    assert isinstance(answer, Unsupported)
    assert told in answer.reason


def test_one_token_goes_by_rows_where_they_are_neither_long_nor_short_and_many() -> None:
    sizes = [(4096, 28672), (4096, 128_256), (1024, 4096), (14336, 4096), (1024, 151_936)]
    specs = [replace(SPEC, in_features=c, out_features=n) for c, n in sizes]
    assert [True, True, True, False, False] == [by_rows(spec) for spec in specs]


def test_it_comes_before_the_others() -> None:
    assert HopperLinear(target()).supports(SPEC) == Supported(rank=5)
