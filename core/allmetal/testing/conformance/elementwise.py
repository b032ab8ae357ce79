"""Level 1: norms and gated activations."""

from __future__ import annotations

import pytest

from allmetal.platform.specs import GatedActivationSpec, RMSNormSpec
from allmetal.testing.conformance.base import Bench, Conformance, check, expected_op, title
from allmetal.testing.conformance.problems import GATED_ACTIVATION, RMS_NORM

NUM_TOKENS = (0, 1, 13)


class ElementwiseConformance(Conformance):
    @pytest.mark.parametrize("spec", RMS_NORM, ids=title)
    def test_rms_norm_is_what_it_claims(self, bench: Bench, spec: RMSNormSpec) -> None:
        for kernel in bench.claiming(spec):
            op = kernel.build(spec)
            for num_tokens in NUM_TOKENS:
                x = 4 * bench.normal(num_tokens, spec.dim, dtype=spec.dtype)
                weight = bench.normal(spec.dim, dtype=spec.dtype)
                inputs = [x, weight]
                if spec.residual:
                    inputs.append(bench.normal(num_tokens, spec.dim, dtype=spec.dtype))
                y, s = bench.call(op, *map(bench.put, inputs))
                # The sum is kept in the activation type, and it is what is normalised.
                kept = x + inputs[2] if spec.residual else x
                expected, _ = expected_op(_plain(spec))(kept.double(), weight.double())
                check(bench.get(s), kept, spec.dtype)
                check(bench.get(y), expected, spec.dtype)

    @pytest.mark.parametrize("spec", GATED_ACTIVATION, ids=title)
    def test_gated_activation_is_what_it_claims(
        self, bench: Bench, spec: GatedActivationSpec
    ) -> None:
        for kernel in bench.claiming(spec):
            op = kernel.build(spec)
            for num_tokens in NUM_TOKENS:
                x = 3 * bench.normal(num_tokens, 2 * spec.dim, dtype=spec.dtype)
                y = bench.call(op, bench.put(x))
                check(bench.get(y), expected_op(spec)(x.double()), spec.dtype)


def _plain(spec: RMSNormSpec) -> RMSNormSpec:
    """Without a residual, for an input that has it added already."""
    return RMSNormSpec(dtype=spec.dtype, dim=spec.dim, eps=spec.eps, offset=spec.offset)
