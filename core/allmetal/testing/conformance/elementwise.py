"""Level 1: norms and gated activations."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from allmetal.platform.contract import AnyKernel
from allmetal.platform.specs import GatedActivationSpec, RMSNormSpec
from allmetal.testing.conformance.base import Bench, Conformance, check, expected_op, title
from allmetal.testing.conformance.draws import draw_num_tokens
from allmetal.testing.conformance.problems import GATED_ACTIVATION, RMS_NORM

NUM_TOKENS = (0, 1, 13)
SOME_NORMS = [s for s in RMS_NORM if s.dim == 64 and s.offset == 0 and not s.cast_before_weight]
SOME_ACTIVATIONS = [s for s in GATED_ACTIVATION if s.dim == 256 and s.activation == "silu"]


class ElementwiseConformance(Conformance):
    level = 1

    @pytest.mark.parametrize("spec", RMS_NORM, ids=title)
    def test_rms_norm_is_what_it_claims(self, bench: Bench, spec: RMSNormSpec) -> None:
        hold_norm(bench, spec, bench.claiming(spec), NUM_TOKENS)

    @pytest.mark.parametrize("number", range(6))
    def test_rms_norm_of_any_shape_is_what_it_claims(self, bench: Bench, number: int) -> None:
        spec, kernels = bench.drawn("rms_norm")
        hold_norm(bench, spec, kernels, [draw_num_tokens(bench.generator)])

    @pytest.mark.parametrize("spec", SOME_NORMS, ids=title)
    def test_rms_norm_takes_rows_that_lie_apart(self, bench: Bench, spec: RMSNormSpec) -> None:
        hold_norm(bench, spec, bench.claiming(spec), NUM_TOKENS, apart=True)

    @pytest.mark.parametrize("spec", SOME_NORMS, ids=title)
    def test_rms_norm_keeps_nothing_from_one_call_to_the_next(
        self, bench: Bench, spec: RMSNormSpec
    ) -> None:
        for kernel in bench.claiming(spec):
            op = kernel.build(spec)
            ones = bench.put(bench.normal(spec.dim, dtype=spec.dtype))
            inputs, louder = (
                [scale * bench.normal(13, spec.dim, dtype=spec.dtype)] * (2 if spec.residual else 1)
                for scale in (1, 50)
            )
            answers = [
                bench.get(bench.call(op, bench.put(x), ones, *map(bench.put, rest))[0])
                for x, *rest in (inputs, louder, inputs)
            ]
            check(answers[2], answers[0], spec.dtype)

    @pytest.mark.parametrize("spec", GATED_ACTIVATION, ids=title)
    def test_gated_activation_is_what_it_claims(
        self, bench: Bench, spec: GatedActivationSpec
    ) -> None:
        hold_activation(bench, spec, bench.claiming(spec), NUM_TOKENS)

    @pytest.mark.parametrize("number", range(6))
    def test_gated_activation_of_any_shape_is_what_it_claims(
        self, bench: Bench, number: int
    ) -> None:
        spec, kernels = bench.drawn("gated_activation")
        hold_activation(bench, spec, kernels, [draw_num_tokens(bench.generator)])

    @pytest.mark.parametrize("spec", SOME_ACTIVATIONS, ids=title)
    def test_gated_activation_takes_rows_that_lie_apart(
        self, bench: Bench, spec: GatedActivationSpec
    ) -> None:
        hold_activation(bench, spec, bench.claiming(spec), NUM_TOKENS, apart=True)

    @pytest.mark.parametrize("spec", SOME_ACTIVATIONS, ids=title)
    def test_gated_activation_keeps_nothing_from_one_call_to_the_next(
        self, bench: Bench, spec: GatedActivationSpec
    ) -> None:
        for kernel in bench.claiming(spec):
            op = kernel.build(spec)
            x, louder = (s * bench.normal(13, 2 * spec.dim, dtype=spec.dtype) for s in (1, 50))
            answers = [bench.get(bench.call(op, bench.put(each))) for each in (x, louder, x)]
            check(answers[2], answers[0], spec.dtype)


def hold_norm(
    bench: Bench,
    spec: RMSNormSpec,
    kernels: Iterable[AnyKernel],
    sizes: Iterable[int],
    *,
    apart: bool = False,
) -> None:
    put = bench.put_apart if apart else bench.put
    for num_tokens in sizes:
        x = 4 * bench.normal(num_tokens, spec.dim, dtype=spec.dtype)
        weight = bench.normal(spec.dim, dtype=spec.dtype)
        rest = [bench.normal(num_tokens, spec.dim, dtype=spec.dtype)] if spec.residual else []
        # The sum is kept in the activation type, and it is what is normalised.
        kept = x + rest[0] if spec.residual else x
        expected, _ = expected_op(_plain(spec))(kept.double(), weight.double())
        for kernel in kernels:
            y, s = bench.call(kernel.build(spec), put(x), bench.put(weight), *map(put, rest))
            check(bench.get(s), kept, spec.dtype)
            check(bench.get(y), expected, spec.dtype)


def hold_activation(
    bench: Bench,
    spec: GatedActivationSpec,
    kernels: Iterable[AnyKernel],
    sizes: Iterable[int],
    *,
    apart: bool = False,
) -> None:
    put = bench.put_apart if apart else bench.put
    for num_tokens in sizes:
        x = 3 * bench.normal(num_tokens, 2 * spec.dim, dtype=spec.dtype)
        expected = expected_op(spec)(x.double())
        for kernel in kernels:
            y = bench.call(kernel.build(spec), put(x))
            check(bench.get(y), expected, spec.dtype)


def _plain(spec: RMSNormSpec) -> RMSNormSpec:
    """Without a residual, for an input that has it added already."""
    return RMSNormSpec(dtype=spec.dtype, dim=spec.dim, eps=spec.eps, offset=spec.offset)
