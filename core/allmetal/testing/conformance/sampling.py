"""Level 1: logits to tokens.

A draw near the border of two tokens, or of a filter, may fall on either side by rounding; such
rows are found by nudging the reference, and left out.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import pytest
import torch

from allmetal.platform.specs import SamplingSpec
from allmetal.testing.conformance.base import Bench, Conformance, expected_op, title
from allmetal.testing.conformance.problems import SAMPLING

NUDGE = 1e-5


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Of each row; None where the op is told that no row uses it."""

    temperature: torch.Tensor | None
    top_k: torch.Tensor | None = None
    top_p: torch.Tensor | None = None
    min_p: torch.Tensor | None = None
    uniform: torch.Tensor | None = None

    def tuple(self) -> tuple[torch.Tensor | None, ...]:
        return tuple(getattr(self, f.name) for f in fields(self))

    def rows(self, index: torch.Tensor) -> Options:
        return Options(**{f.name: _index(getattr(self, f.name), index) for f in fields(self)})


class SamplingConformance(Conformance):
    level = 1

    @pytest.mark.parametrize("spec", SAMPLING, ids=title)
    def test_sampling_draws_what_the_reference_draws(
        self, bench: Bench, spec: SamplingSpec
    ) -> None:
        num_rows = _num_rows(spec)
        logits = 3 * bench.normal(num_rows, spec.vocab_size)
        forbidden = bench.uniform(num_rows, spec.vocab_size) < 0.3
        forbidden[torch.arange(num_rows), logits.argmax(1)] = False
        logits = logits.masked_fill(forbidden, float("-inf"))
        every = _random_options(bench, num_rows)
        kernels = bench.claiming(spec)
        for options in (
            every,
            replace(every, top_k=None, top_p=None, min_p=None),
            replace(every, top_k=None, min_p=None),
            replace(every, top_p=None),
            Options(temperature=None),
        ):
            expected, certain = _certain(spec, logits, options)
            assert certain.sum() > num_rows // 2
            for kernel in kernels:
                drawn = _draw(bench, kernel.build(spec), logits, options)
                assert torch.equal(drawn[certain], expected[certain]), kernel.name

    @pytest.mark.parametrize("spec", SAMPLING, ids=title)
    def test_a_rows_token_does_not_depend_on_its_neighbours(
        self, bench: Bench, spec: SamplingSpec
    ) -> None:
        num_rows = _num_rows(spec)
        logits = 3 * bench.normal(num_rows, spec.vocab_size)
        every = _random_options(bench, num_rows)
        warm = Options(temperature=torch.full((num_rows,), 1.7), uniform=every.uniform)
        for kernel in bench.claiming(spec):
            op = kernel.build(spec)
            for options in (every, warm):
                together = _draw(bench, op, logits, options)
                order = torch.randperm(num_rows, generator=bench.generator)
                shuffled = _draw(bench, op, logits[order], options.rows(order))
                assert torch.equal(together[order], shuffled)
                for row in order[:12, None]:
                    alone = _draw(bench, op, logits[row], options.rows(row))
                    assert torch.equal(together[row], alone)

    def test_sampling_takes_logits_whose_rows_lie_apart(self, bench: Bench) -> None:
        spec = SAMPLING[2]
        num_rows = _num_rows(spec)
        logits, every = (
            3 * bench.normal(num_rows, spec.vocab_size),
            _random_options(bench, num_rows),
        )
        for kernel in bench.claiming(spec):
            op = kernel.build(spec)
            for options in (every, Options(temperature=None)):
                apart = _draw(bench, op, logits, options, apart=True)
                assert torch.equal(_draw(bench, op, logits, options), apart), kernel.name

    def test_sampling_keeps_nothing_from_one_call_to_the_next(self, bench: Bench) -> None:
        spec = SAMPLING[2]
        num_rows = _num_rows(spec)
        logits, every = (
            3 * bench.normal(num_rows, spec.vocab_size),
            _random_options(bench, num_rows),
        )
        for kernel in bench.claiming(spec):
            op = kernel.build(spec)
            first, _, again = (_draw(bench, op, x, every) for x in (logits, -9 * logits, logits))
            assert torch.equal(first, again), kernel.name

    def test_sampling_takes_an_empty_batch_and_the_ends_of_the_interval(self, bench: Bench) -> None:
        spec = SAMPLING[2]
        for kernel in bench.claiming(spec):
            op = kernel.build(spec)
            nobody = _draw(bench, op, torch.empty(0, spec.vocab_size), Options(temperature=None))
            assert nobody.shape == (0,)
            logits = torch.full((2, spec.vocab_size), float("-inf"))
            logits[:, 100:900] = bench.normal(2, 800)
            ends = torch.tensor([0.0, 1 - 2**-24])
            drawn = _draw(bench, op, logits, Options(temperature=torch.ones(2), uniform=ends))
            assert ((drawn >= 100) & (drawn < 900)).all(), drawn

    def test_ties_of_the_last_token_kept_stay(self, bench: Bench) -> None:
        spec = SamplingSpec(vocab_size=17)
        logits = torch.full((40, 17), -5.0)
        logits[:, [3, 11]], logits[:, 7] = 1.0, 2.0
        steps = (torch.arange(40) + 0.5) / 40
        for kernel in bench.claiming(spec):
            op = kernel.build(spec)
            for change in (
                {"top_k": torch.full((40,), 2, dtype=torch.int32)},
                {"top_p": torch.full((40,), 0.6)},
            ):
                options = Options(temperature=torch.ones(40), uniform=steps, **change)
                assert {3, 7, 11} == set(_draw(bench, op, logits, options).tolist())


def _num_rows(spec: SamplingSpec) -> int:
    """Fewer of a large vocabulary, which the reference sorts row by row."""
    return 64 if spec.vocab_size < 100 else 20


def _random_options(bench: Bench, num_rows: int) -> Options:
    def pick(*values: float) -> torch.Tensor:
        return torch.tensor(values)[bench.integers(0, len(values), num_rows)]

    return Options(
        temperature=pick(0.0, 0.3, 1.0, 1.7),
        top_k=pick(0, 1, 5, 40, 100_000).to(torch.int32),
        top_p=pick(1.0, 0.95, 0.6, 0.1),
        min_p=pick(0.0, 0.02, 0.3),
        uniform=bench.uniform(num_rows),
    )


def _draw(
    bench: Bench, op: object, logits: torch.Tensor, options: Options, *, apart: bool = False
) -> torch.Tensor:
    assert callable(op)
    there = [None if x is None else bench.put(x) for x in options.tuple()]
    scores = bench.put(logits)
    if options.temperature is None:
        ids = bench.get(bench.call(op, scores, *there))
    else:  # the op may overwrite the scores
        ids = bench.get(bench.call(lambda *rest: op(scores, *rest), *there))
    assert ids.dtype == torch.int64
    return ids


def _certain(
    spec: SamplingSpec, logits: torch.Tensor, options: Options
) -> tuple[torch.Tensor, torch.Tensor]:
    """(the reference's tokens, rows whose token a small nudge does not change)."""
    op = expected_op(spec)
    tokens = op(logits.double(), *options.tuple())
    certain = torch.ones(len(tokens), dtype=torch.bool)
    if options.uniform is None:
        return tokens, certain
    for by in (-NUDGE, NUDGE):
        moved = replace(options, uniform=(options.uniform + by).clamp(0, 1 - 2**-24))
        if options.top_p is not None:  # which is off at 1 and stays so
            kept = torch.where(options.top_p < 1, options.top_p + by, options.top_p)
            moved = replace(moved, top_p=kept)
        certain &= tokens == op(logits.double(), *moved.tuple())
    return tokens, certain


def _index(x: torch.Tensor | None, index: torch.Tensor) -> torch.Tensor | None:
    return None if x is None else x[index]
