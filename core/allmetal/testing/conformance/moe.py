"""Level 1: routed experts, over routings and stored formats."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import pytest
import torch

from allmetal.platform.contract import AnyKernel
from allmetal.platform.specs import LinearSpec, MoEOp, MoESpec, WeightFormat
from allmetal.testing.conformance.base import (
    Bench,
    Conformance,
    check,
    expected_op,
    title,
)
from allmetal.testing.conformance.draws import draw_num_tokens
from allmetal.testing.conformance.linear import stored_weight, tolerance_of
from allmetal.testing.conformance.problems import MOE

NUM_TOKENS = (0, 1, 7, 33)
_STEP = 0.25
"""Between logits: so far apart, in every dtype, that no rounding changes whom they choose."""

SOME = [s for s in MOE if s.routing.correction]


class MoEConformance(Conformance):
    level = 1

    @pytest.mark.parametrize("spec", MOE, ids=title)
    def test_moe_is_what_it_claims(self, bench: Bench, spec: MoESpec) -> None:
        hold(bench, spec, bench.claiming(spec), NUM_TOKENS)

    @pytest.mark.parametrize("number", range(6))
    def test_moe_of_any_shape_is_what_it_claims(self, bench: Bench, number: int) -> None:
        spec, kernels = bench.drawn("moe")
        hold(bench, spec, kernels, [draw_num_tokens(bench.generator)])

    @pytest.mark.parametrize("spec", SOME, ids=title)
    def test_moe_takes_rows_that_lie_apart(self, bench: Bench, spec: MoESpec) -> None:
        hold(bench, spec, bench.claiming(spec), NUM_TOKENS, apart=True)

    @pytest.mark.parametrize("spec", MOE[:1], ids=title)
    def test_moe_where_all_tokens_choose_the_same(self, bench: Bench, spec: MoESpec) -> None:
        logits = router_logits(bench, spec, 1).expand(70, -1)
        hold(bench, spec, bench.claiming(spec), [70], logits=logits.contiguous())

    @pytest.mark.parametrize("spec", MOE[:1], ids=title)
    def test_moe_keeps_nothing_from_one_call_to_the_next(self, bench: Bench, spec: MoESpec) -> None:
        weights = experts(bench, spec)
        x, louder = (s * bench.normal(7, spec.hidden_size, dtype=spec.dtype) for s in (1, 50))
        logits = [router_logits(bench, spec, 7) for _ in range(2)]
        for kernel in bench.claiming(spec):
            run = _packed(bench, kernel.build(spec), weights)
            calls = ((x, logits[0]), (louder, logits[1]), (x, logits[0]))
            answers = [bench.get(bench.call(run, *map(bench.put, call))) for call in calls]
            check(answers[2], answers[0], spec.dtype)


def hold(
    bench: Bench,
    spec: MoESpec,
    kernels: Iterable[AnyKernel],
    sizes: Iterable[int],
    *,
    apart: bool = False,
    logits: torch.Tensor | None = None,
) -> None:
    """Each kernel's outputs with one set of experts against the reference's."""
    weights = experts(bench, spec)
    exact = expected_op(spec)
    packed = exact.pack(*weights)
    put = bench.put_apart if apart else bench.put
    runs = [_packed(bench, kernel.build(spec), weights) for kernel in kernels]
    for num_tokens in sizes:
        x = bench.normal(num_tokens, spec.hidden_size, dtype=spec.dtype)
        routed = router_logits(bench, spec, num_tokens) if logits is None else logits
        rest = [bench.normal(spec.num_experts)] if spec.routing.correction else []
        expected = exact(x.double(), routed.double(), packed, *(r.double() for r in rest))
        for run in runs:
            y = bench.call(run, put(x), put(routed), *map(bench.put, rest))
            check(bench.get(y), expected, spec.dtype, tolerance=_tolerance(spec))


def router_logits(bench: Bench, spec: MoESpec, num_tokens: int) -> torch.Tensor:
    """[T, E] in the spec's dtype or float32, no two of a row alike."""
    shape = (num_tokens, spec.num_experts)
    order = bench.uniform(*shape).argsort(-1).to(torch.float32)
    logits = _STEP * (order - spec.num_experts / 2)
    return logits.to(getattr(torch, spec.dtype)) if num_tokens % 2 else logits


def experts(
    bench: Bench, spec: MoESpec
) -> tuple[Mapping[str, torch.Tensor], Mapping[str, torch.Tensor]]:
    """Random (gate and up, down), as a checkpoint holds them, of a size that keeps the tokens'."""
    hidden, inner = spec.hidden_size, spec.intermediate_size

    def stacked(inputs: int, outputs: int, weight: WeightFormat) -> Mapping[str, torch.Tensor]:
        linear = LinearSpec(
            dtype=spec.dtype, in_features=inputs, out_features=outputs, bias=False, weight=weight
        )
        each = [stored_weight(bench, linear) for _ in range(spec.num_experts)]
        return {name: torch.stack([one[name] for one in each]) for name in each[0]}

    return stacked(hidden, 2 * inner, spec.gate_up), stacked(inner, hidden, spec.down)


def _packed(
    bench: Bench, op: MoEOp, weights: Sequence[Mapping[str, torch.Tensor]]
) -> Callable[..., torch.Tensor]:
    """Packing may keep the tensors, so each kernel gets its own."""
    gate_up, down = ({name: bench.put(t) for name, t in part.items()} for part in weights)
    packed = op.pack(gate_up, down)
    return lambda x, logits, *rest: op(x, logits, packed, *rest)


def _tolerance(spec: MoESpec) -> float:
    # Two products and what is between them are each rounded to the dtype.
    return 2 * max(tolerance_of(spec.dtype, weight) for weight in (spec.gate_up, spec.down))
