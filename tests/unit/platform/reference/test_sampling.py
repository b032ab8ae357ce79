"""The reference sampler against the definition written out, token by token, in Python."""

from __future__ import annotations

import math
import random
from collections import Counter

import pytest
import torch

from allmetal.platform.reference import kernels
from allmetal.platform.specs import SamplingSpec

(KERNEL,) = kernels()["sampling"]
V = 23


def sample(
    logits: torch.Tensor,
    temperature: list[float] | None,
    top_k: list[int] | None = None,
    top_p: list[float] | None = None,
    min_p: list[float] | None = None,
    uniform: list[float] | None = None,
) -> list[int]:
    def floats(values: list[float] | None) -> torch.Tensor | None:
        return None if values is None else torch.tensor(values, dtype=torch.float32)

    op = KERNEL.build(SamplingSpec(vocab_size=logits.shape[1]))
    k = None if top_k is None else torch.tensor(top_k, dtype=torch.int32)
    ids = op(logits, floats(temperature), k, floats(top_p), floats(min_p), floats(uniform))
    assert ids.dtype == torch.int64
    return list(map(int, ids))


def shares(logits: list[float], t: float, k: int, p: float, min_p: float) -> list[float]:
    """Probability of each token after all filters."""
    top = max(logits)
    mass = {i: math.exp((x - top) / t) for i, x in enumerate(logits) if x > -math.inf}
    mass = {i: m for i, m in mass.items() if m >= min_p}  # the largest mass is 1
    if k:
        least = sorted(mass.values(), reverse=True)[: min(k, len(mass))][-1]
        mass = {i: m for i, m in mass.items() if m >= least}
    total, held, least = sum(mass.values()), 0.0, 0.0
    for m in sorted(mass.values(), reverse=True):
        held, least = held + m, m
        if held >= p * total:
            break
    mass = {i: m for i, m in mass.items() if m >= least}
    total = sum(mass.values())
    return [mass.get(i, 0.0) / total for i in range(len(logits))]


def test_each_token_is_drawn_on_exactly_its_share_of_the_unit_interval() -> None:
    rng = random.Random()
    for _ in range(60):
        logits = [rng.gauss(0, 2) for _ in range(V)]
        for i in rng.sample(range(V), 3):
            logits[i] = -math.inf
        t, k = rng.choice([0.3, 1.0, 2.0]), rng.choice([0, 1, 5, 100])
        p, min_p = rng.choice([0.3, 0.8, 0.95, 1.0]), rng.choice([0.0, 0.05, 0.4])
        left, expected, uniform = 0.0, [], []
        for token, share in enumerate(shares(logits, t, k, p, min_p)):
            if share > 1e-4:
                expected += [token, token]
                uniform += [left + 0.01 * share, left + 0.99 * share]
            left += share
        n = len(uniform)
        rows = torch.tensor([logits] * n)
        assert expected == sample(rows, [t] * n, [k] * n, [p] * n, [min_p] * n, uniform)


def test_draws_follow_the_distribution() -> None:
    logits = torch.tensor([[0.0, 1.0, -1.0, 2.0]])
    n = 4000
    drawn = Counter(sample(logits.expand(n, 4), [1.0] * n, uniform=torch.rand(n).tolist()))
    for token, share in enumerate(logits[0].double().softmax(0).tolist()):
        assert abs(drawn[token] - n * share) < 5 * math.sqrt(n * share * (1 - share))


def test_a_row_depends_on_nothing_but_itself() -> None:
    b, v = 9, 1000
    logits = torch.randn(b, v)
    t, p = [0.0, 1.0, 0.5] * 3, [1.0, 0.9, 0.5] * 3
    k, m, u = [0, 10, 50] * 3, [0.0, 0.1, 0.01] * 3, torch.rand(b).tolist()
    together = sample(logits, t, k, p, m, u)
    order = random.sample(range(b), b)
    shuffled = sample(
        logits[order],
        *([x[i] for i in order] for x in (t, k, p, m, u)),  # type: ignore[arg-type]
    )
    assert [together[i] for i in order] == shuffled
    for i in range(b):
        assert sample(logits[i : i + 1], [t[i]], [k[i]], [p[i]], [m[i]], [u[i]]) == [together[i]]


def test_no_temperature_is_greedy_for_all_and_zero_for_one_row() -> None:
    logits = torch.randn(5, V)
    best = logits.argmax(-1).tolist()
    assert best == sample(logits, None)
    assert best[0] == sample(logits, [0.0] + [1.0] * 4, uniform=[0.999] * 5)[0]


@pytest.mark.parametrize("u", [0.0, 1 - 2**-24])
def test_the_ends_of_the_interval_draw_possible_tokens(u: float) -> None:
    logits = torch.full((1, 50_000), -math.inf)
    logits[0, 100:40_000] = torch.randn(39_900)
    (token,) = sample(logits, [1.0], uniform=[u])
    assert 100 <= token < 40_000


def test_ties_of_the_last_token_kept_stay() -> None:
    logits = torch.tensor([[1.0, 2.0, 1.0, 0.0]]).expand(40, 4)
    u = [(i + 0.5) / 40 for i in range(40)]
    assert set(sample(logits, [1.0] * 40, top_k=[2] * 40, uniform=u)) == {0, 1, 2}
    assert set(sample(logits, [1.0] * 40, top_p=[0.6] * 40, uniform=u)) == {0, 1, 2}
    assert set(sample(logits, [1.0] * 40, top_p=[0.5] * 40, uniform=u)) == {1}


def test_extreme_temperatures_neither_overflow_nor_vanish() -> None:
    logits = torch.tensor([[1e4, -1e4, 1e4 - 1.0]])
    assert sample(logits, [1e-30], uniform=[0.99]) == [0]
    assert sample(logits, [1e30], uniform=[0.5]) == [1]


def test_an_empty_batch_gives_no_tokens() -> None:
    assert sample(torch.empty(0, V), None) == []
    assert sample(torch.empty(0, V), [], [], [], [], []) == []
