"""Level 1: attention over a paged cache that holds NaN wherever no query may look."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from allmetal.platform.contract import AnyKernel
from allmetal.platform.specs import AttentionSpec
from allmetal.testing.conformance.base import Bench, Conformance, check, title
from allmetal.testing.conformance.draws import draw_lengths
from allmetal.testing.conformance.paged import (
    Lengths,
    Problem,
    exactly,
    make_problem,
    run,
    through_its_writer,
)
from allmetal.testing.conformance.problems import ATTENTION

BATCHES: Mapping[str, Lengths] = {
    "empty": ([], []),
    "one token": ([1], [1]),
    "prefill": ([19, 1, 48], [19, 1, 48]),
    "decode": ([1, 1, 1, 1], [1, 16, 17, 75]),
    "mixed": ([1, 21, 1, 5], [33, 61, 2, 64]),
}
PLAIN = ATTENTION[:3]
WINDOW = 24


class AttentionConformance(Conformance):
    level = 1

    @pytest.mark.parametrize("spec", ATTENTION, ids=title)
    def test_attention_is_what_it_claims(self, bench: Bench, spec: AttentionSpec) -> None:
        hold(bench, spec, bench.claiming(spec), BATCHES.values())

    @pytest.mark.parametrize("number", range(10))
    def test_attention_of_any_shape_is_what_it_claims(self, bench: Bench, number: int) -> None:
        spec, kernels = bench.drawn("attention")
        longest = max(3 * spec.block_size, 70)
        lengths = [draw_lengths(bench.generator, longest) for _ in range(2)]
        hold(bench, spec, kernels, lengths)

    @pytest.mark.parametrize("spec", PLAIN, ids=title)
    def test_attention_takes_queries_whose_rows_lie_apart(
        self, bench: Bench, spec: AttentionSpec
    ) -> None:
        for kernel in bench.claiming(spec):
            problem = make_problem(bench, spec, BATCHES["mixed"])
            out = run(bench, spec, kernel.build(spec), problem, apart=True)
            check(out, exactly(spec, problem), spec.dtype)

    @pytest.mark.parametrize("spec", PLAIN, ids=title)
    def test_attention_keeps_nothing_from_one_call_to_the_next(
        self, bench: Bench, spec: AttentionSpec
    ) -> None:
        """Between two calls with the same input comes one with much larger values."""
        for kernel in bench.claiming(spec):
            op = kernel.build(spec)
            problem, other = (make_problem(bench, spec, BATCHES["mixed"]) for _ in range(2))
            louder = replace(other, q=30 * other.q, k=30 * other.k, v=30 * other.v)
            before = run(bench, spec, op, problem)
            run(bench, spec, op, louder)
            check(run(bench, spec, op, problem), before, spec.dtype)

    @pytest.mark.parametrize("spec", [s for s in ATTENTION if s.window == WINDOW], ids=title)
    def test_blocks_before_the_window_may_be_given_away(
        self, bench: Bench, spec: AttentionSpec
    ) -> None:
        """Their entries point to the null block, which holds NaN."""
        for kernel in bench.claiming(spec):
            problem = make_problem(bench, spec, ([2, 1], [90, 77]))
            expected = exactly(spec, problem)
            for row, first in enumerate((90 - 2 + 1 - WINDOW, 77 - 1 + 1 - WINDOW)):
                problem.paged.attention.block_table[row, : first // spec.block_size] = 0
            check(run(bench, spec, kernel.build(spec), problem), expected, spec.dtype)

    @pytest.mark.parametrize("spec", PLAIN[:2], ids=title)
    def test_a_sequences_result_does_not_depend_on_its_neighbours(
        self, bench: Bench, spec: AttentionSpec
    ) -> None:
        """Within rounding: kernels may sum in another order."""
        for kernel in bench.claiming(spec):
            op = kernel.build(spec)
            problem = make_problem(bench, spec, BATCHES["mixed"])
            together = run(bench, spec, op, problem)
            for row, alone in enumerate(problem.apart()):
                first = int(problem.paged.attention.query_start[row])
                rows = together[first : first + len(alone.q)]
                check(run(bench, spec, op, alone), rows, spec.dtype)

    @pytest.mark.parametrize("spec", PLAIN[:2], ids=title)
    def test_layers_of_other_kinds_share_a_batch(self, bench: Bench, spec: AttentionSpec) -> None:
        """What a kernel remembers of a step must tell the layers apart."""
        other = replace(spec, window=WINDOW)
        for kernel in bench.claiming(spec):
            problem = make_problem(bench, spec, BATCHES["mixed"])
            batch = bench.put_batch(problem.paged.attention)
            both = [s for s in (spec, other) if kernel in bench.taking(s)]
            ops: list[tuple[AttentionSpec, Any]] = [(s, kernel.build(s)) for s in both]
            for this, op in [*ops, *reversed(ops)]:
                check(
                    run(bench, this, op, problem, batch=batch), exactly(this, problem), this.dtype
                )

    @pytest.mark.parametrize("spec", ATTENTION, ids=title)
    def test_attention_reads_what_its_own_writer_wrote(
        self, bench: Bench, spec: AttentionSpec
    ) -> None:
        """With rotation, through the `attention_input` that a model gets for the cache's layout."""
        for kernel in bench.claiming(spec):
            problem = make_problem(bench, spec, BATCHES["mixed"])
            out, turned = through_its_writer(bench, spec, kernel.build(spec), problem)
            check(out, exactly(spec, turned), spec.dtype)


def hold(
    bench: Bench, spec: AttentionSpec, kernels: Iterable[AnyKernel], lengths: Iterable[Lengths]
) -> None:
    """Each kernel's answers to new problems against the reference's."""
    problems: list[Problem] = [make_problem(bench, spec, lens) for lens in lengths]
    expected = [exactly(spec, problem) for problem in problems]
    for kernel in kernels:
        op = kernel.build(spec)
        for problem, exact in zip(problems, expected, strict=True):
            check(run(bench, spec, op, problem), exact, spec.dtype)
