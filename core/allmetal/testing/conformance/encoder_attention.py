"""Level 1: attention in both directions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pytest
import torch

from allmetal.platform.contract import AnyKernel
from allmetal.platform.specs import EncoderAttentionSpec
from allmetal.testing.conformance.base import Bench, Conformance, check, expected_op, title
from allmetal.testing.conformance.draws import draw_lengths
from allmetal.testing.conformance.problems import ENCODER_ATTENTION

LENGTHS = ((), (1,), (5, 1, 33), (70, 128))


class EncoderAttentionConformance(Conformance):
    level = 1

    @pytest.mark.parametrize("spec", ENCODER_ATTENTION, ids=title)
    def test_encoder_attention_is_what_it_claims(
        self, bench: Bench, spec: EncoderAttentionSpec
    ) -> None:
        hold(bench, spec, bench.claiming(spec), LENGTHS)

    @pytest.mark.parametrize("number", range(6))
    def test_encoder_attention_of_any_shape_is_what_it_claims(
        self, bench: Bench, number: int
    ) -> None:
        spec, kernels = bench.drawn("encoder_attention")
        hold(bench, spec, kernels, [draw_lengths(bench.generator, 90)[1]])

    @pytest.mark.parametrize("spec", ENCODER_ATTENTION[:2], ids=title)
    def test_encoder_attention_takes_rows_that_lie_apart(
        self, bench: Bench, spec: EncoderAttentionSpec
    ) -> None:
        hold(bench, spec, bench.claiming(spec), LENGTHS, apart=True)


def hold(
    bench: Bench,
    spec: EncoderAttentionSpec,
    kernels: Iterable[AnyKernel],
    batches: Iterable[Sequence[int]],
    *,
    apart: bool = False,
) -> None:
    exact, put = expected_op(spec), bench.put_apart if apart else bench.put
    ops = [kernel.build(spec) for kernel in kernels]
    for lens in batches:
        q, k, v = (
            bench.normal(sum(lens), heads, spec.head_dim, dtype=spec.dtype)
            for heads in (spec.num_heads, spec.num_kv_heads, spec.num_kv_heads)
        )
        starts = torch.tensor([0, *lens]).cumsum(0).to(torch.int32)
        expected = exact(q.double(), k.double(), v.double(), starts, lens)
        for op in ops:
            out = bench.call(op, put(q), put(k), put(v), bench.put(starts), lens)
            check(bench.get(out), expected, spec.dtype)
