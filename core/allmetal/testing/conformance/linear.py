"""Level 1: matrix products over every stored format a kernel claims."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import assert_never

import pytest
import torch

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
from allmetal.testing.conformance.base import (
    TOLERANCE,
    Bench,
    Conformance,
    check,
    expected_op,
    title,
)
from allmetal.testing.conformance.problems import LINEAR

NUM_TOKENS = (0, 1, 7, 33)
ROUNDED_ACTIVATIONS = 1e-2
"""Where activations are rounded to integers, one step's difference is not an error."""


class LinearConformance(Conformance):
    @pytest.mark.parametrize("spec", LINEAR, ids=title)
    def test_linear_is_what_it_claims(self, bench: Bench, spec: LinearSpec) -> None:
        tensors = stored_weight(bench, spec)
        bias = bench.normal(spec.out_features, dtype=spec.dtype) if spec.bias else None
        exact = expected_op(spec)
        packed = exact.pack(tensors)
        tolerance = TOLERANCE[spec.dtype]
        if isinstance(spec.weight, IntWeight) and spec.weight.act_dtype:
            tolerance = max(tolerance, ROUNDED_ACTIVATIONS)
        for kernel in bench.claiming(spec):
            op = kernel.build(spec)
            # Packing may keep the tensors, so each kernel gets its own.
            weight = op.pack({name: bench.put(t) for name, t in tensors.items()})
            for num_tokens in NUM_TOKENS:
                x = bench.normal(num_tokens, spec.in_features, dtype=spec.dtype)
                inputs, wide = [x], None
                if bias is not None:
                    inputs, wide = [x, bias], bias.double()
                run = _without_weight(op, weight)
                y = bench.get(bench.call(run, *map(bench.put, inputs)))
                check(y, exact(x.double(), packed, wide), spec.dtype, tolerance=tolerance)


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
        case GGUFWeight(type=ggml_type):
            return {"weight": random_blocks(bench, ggml_type, n, c)}
        case other:
            assert_never(other)


def random_blocks(bench: Bench, ggml_type: str, rows: int, columns: int) -> torch.Tensor:
    """Rows of random bytes, of those blocks whose values are of a weight's size.

    Any bytes are a valid block, but a random float16 scale may be infinite or huge.
    """
    block = BLOCKS[ggml_type]
    wanted = rows * columns // block.elements
    good: list[torch.Tensor] = []
    while sum(map(len, good)) < wanted:
        raw = bench.integers(0, 256, 64 * wanted, block.nbytes).to(torch.uint8)
        largest = dequantize(raw, ggml_type, torch.float32).abs().amax(1)
        good.append(raw[(largest > 1e-3) & (largest < 1e2)])
    return torch.cat(good)[:wanted].view(rows, -1)
