"""Level 1: matrix products over every stored format a kernel claims."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import assert_never

import pytest
import torch

from allmetal.platform.contract import AnyKernel
from allmetal.platform.specs import (
    DenseWeight,
    Float8Weight,
    GGUFWeight,
    IntWeight,
    LinearOp,
    LinearSpec,
    PackedWeight,
    WeightFormat,
)
from allmetal.quant.ggml import BLOCKS
from allmetal.quant.gguf import dequantize
from allmetal.testing.conformance.base import (
    TOLERANCE,
    Bench,
    Conformance,
    check,
    expected_op,
    title,
)
from allmetal.testing.conformance.draws import draw_num_tokens
from allmetal.testing.conformance.problems import LINEAR

NUM_TOKENS = (0, 1, 7, 33)
ROUNDED_ACTIVATIONS = 1e-2
"""Where activations are rounded to integers, one step's difference is not an error."""
ROUNDED_BLOCKS = 2e-2
"""Where 16-bit activations may be rounded to 8 bits a block, and are not by the reference."""


SOME = [
    s
    for s in LINEAR
    if (isinstance(s.weight, DenseWeight) and (s.in_features, s.bias) == (96, True))
    or s.weight in (IntWeight(), GGUFWeight(type="Q4_K"))
]


class LinearConformance(Conformance):
    level = 1

    @pytest.mark.parametrize("spec", LINEAR, ids=title)
    def test_linear_is_what_it_claims(self, bench: Bench, spec: LinearSpec) -> None:
        hold(bench, spec, bench.claiming(spec), NUM_TOKENS)

    @pytest.mark.parametrize("number", range(10))
    def test_linear_of_any_shape_is_what_it_claims(self, bench: Bench, number: int) -> None:
        spec, kernels = bench.drawn("linear")
        hold(bench, spec, kernels, [draw_num_tokens(bench.generator)])

    @pytest.mark.parametrize("spec", SOME, ids=title)
    def test_linear_takes_rows_that_lie_apart(self, bench: Bench, spec: LinearSpec) -> None:
        hold(bench, spec, bench.claiming(spec), NUM_TOKENS, apart=True)

    @pytest.mark.parametrize("spec", SOME, ids=title)
    def test_linear_keeps_nothing_from_one_call_to_the_next(
        self, bench: Bench, spec: LinearSpec
    ) -> None:
        tensors, bias = _stored(bench, spec)
        for kernel in bench.claiming(spec):
            op = kernel.build(spec)
            weight = op.pack({name: bench.put(t) for name, t in tensors.items()})
            run = _without_weight(op, weight)
            there = [] if bias is None else [bench.put(bias)]
            x, louder = (s * bench.normal(7, spec.in_features, dtype=spec.dtype) for s in (1, 50))
            answers = [
                bench.get(bench.call(run, bench.put(each), *there)) for each in (x, louder, x)
            ]
            check(answers[2], answers[0], spec.dtype)


def hold(
    bench: Bench,
    spec: LinearSpec,
    kernels: Iterable[AnyKernel],
    sizes: Iterable[int],
    *,
    apart: bool = False,
) -> None:
    """Each kernel's products with one weight against the reference's."""
    tensors, bias = _stored(bench, spec)
    exact = expected_op(spec)
    packed = exact.pack(tensors)
    tolerance = tolerance_of(spec.dtype, spec.weight)
    there = [] if bias is None else [bench.put(bias)]
    # Packing may keep the tensors, so each kernel gets its own.
    runs = [
        _without_weight(op, op.pack({name: bench.put(t) for name, t in tensors.items()}))
        for op in (kernel.build(spec) for kernel in kernels)
    ]
    for num_tokens in sizes:
        x = bench.normal(num_tokens, spec.in_features, dtype=spec.dtype)
        expected = exact(x.double(), packed, None if bias is None else bias.double())
        for run in runs:
            y = bench.call(run, (bench.put_apart if apart else bench.put)(x), *there)
            check(bench.get(y), expected, spec.dtype, tolerance=tolerance)


def tolerance_of(dtype: str, weight: WeightFormat) -> float:
    """What a product with such a weight may be off by."""
    if isinstance(weight, GGUFWeight) and dtype != "float32":
        return max(TOLERANCE[dtype], ROUNDED_BLOCKS)
    if isinstance(weight, IntWeight | Float8Weight) and weight.act_dtype:
        return max(TOLERANCE[dtype], ROUNDED_ACTIVATIONS)
    return TOLERANCE[dtype]


def _stored(
    bench: Bench, spec: LinearSpec
) -> tuple[Mapping[str, torch.Tensor], torch.Tensor | None]:
    bias = bench.normal(spec.out_features, dtype=spec.dtype) if spec.bias else None
    return stored_weight(bench, spec), bias


def _without_weight(op: LinearOp, weight: PackedWeight) -> Callable[..., torch.Tensor]:
    """A packed weight is the op's own affair, whatever it is."""
    return lambda x, bias=None: op(x, weight, bias)


def stored_weight(bench: Bench, spec: LinearSpec) -> Mapping[str, torch.Tensor]:
    """Random tensors as a checkpoint holds them."""
    n, c = spec.out_features, spec.in_features
    match spec.weight:
        case DenseWeight(dtype=dtype):
            return {"weight": bench.normal(n, c, dtype=dtype)}
        case IntWeight(bits=bits, group_size=group):
            limit = 2 ** (bits - 1)
            values = bench.integers(1 - limit, limit, n, c).to(torch.int8)
            return {"weight": values, "scale": bench.uniform(n, c // (group or c)) / limit}
        case Float8Weight(dtype=dtype, block=block):
            values = bench.normal(n, c, dtype="float32").to(getattr(torch, dtype))
            shape = (n, 1) if block is None else (-(-n // block[0]), -(-c // block[1]))
            return {"weight": values, "scale": bench.uniform(*shape)}
        case GGUFWeight(type=ggml_type):
            return {"weight": random_blocks(bench, ggml_type, n, c)}
        case other:
            assert_never(other)


def random_blocks(bench: Bench, ggml_type: str, rows: int, columns: int) -> torch.Tensor:
    """Rows of random bytes, of those blocks whose values are of a weight's size.

    Any bytes are a valid block, but a random float16 scale may be infinite, or so large that one
    block is all that counts in a row of the result.
    """
    block = BLOCKS[ggml_type]
    wanted = rows * columns // block.elements
    good: list[torch.Tensor] = []
    while sum(map(len, good)) < wanted:
        raw = bench.integers(0, 256, 64 * wanted, block.nbytes).to(torch.uint8)
        largest = dequantize(raw, ggml_type, torch.float32).abs().amax(1)
        good.append(raw[(largest > 0.05) & (largest < 1.0)])
    return torch.cat(good)[:wanted].view(rows, -1)
