"""The uniform numbers that choose tokens: reproducible, even, and unrelated across seeds."""

from __future__ import annotations

import torch

from allmetal.runner.sampler.random import stream_key, uniform

MASK = (1 << 64) - 1


def reference(seed: int, position: int) -> float:
    """SplitMix64 over unbounded integers; the key is one mix of the salted seed."""

    def mix(z: int) -> int:
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
        return z ^ (z >> 31)

    key = mix((seed + 0xD1B54A32D192ED03) & MASK)
    return (mix((key + position * 0x9E3779B97F4A7C15) & MASK) >> 40) / 2**24


def draw(seeds: list[int], positions: list[int]) -> torch.Tensor:
    keys = torch.tensor([stream_key(seed) for seed in seeds])
    return uniform(keys, torch.tensor(positions))


def chi_square(numbers: torch.Tensor, bins: int) -> float:
    """Standard deviations from what even numbers give on average."""
    counts = torch.histc(numbers.double(), bins, 0, 1)
    expected = numbers.numel() / bins
    statistic = float(((counts - expected) ** 2 / expected).sum())
    return (statistic - (bins - 1)) / (2 * (bins - 1)) ** 0.5


def test_numbers_equal_the_generator_over_unbounded_integers() -> None:
    seeds = [0, 1, 2, 12345, 2**31, 2**63 - 1, 2**64 - 1, -7]
    positions = [0, 1, 2, 1000, 131071, 17, 3, 5]
    expected = [reference(s, p) for s, p in zip(seeds, positions, strict=True)]
    assert draw(seeds, positions).tolist() == expected


def test_numbers_lie_in_the_half_open_unit_interval() -> None:
    numbers = draw([3] * 200_000, list(range(200_000)))
    assert float(numbers.min()) >= 0
    assert float(numbers.max()) < 1
    assert numbers.dtype == torch.float32


def test_positions_of_a_seed_are_even() -> None:
    assert abs(chi_square(draw([42] * 100_000, list(range(100_000))), 256)) < 5


def test_seeds_at_a_position_are_even() -> None:
    assert abs(chi_square(draw(list(range(100_000)), [7] * 100_000), 256)) < 5


def test_neighbours_are_unrelated() -> None:
    for a, b in (
        (draw([5] * 50_000, list(range(50_000))), draw([6] * 50_000, list(range(50_000)))),
        (draw([5] * 50_000, list(range(50_000))), draw([5] * 50_000, list(range(1, 50_001)))),
    ):
        correlation = float(torch.corrcoef(torch.stack((a, b)))[0, 1])
        assert abs(correlation) < 5 / 50_000**0.5
        pairs = (a * 16).floor() * 16 + (b * 16).floor()
        assert abs(chi_square(pairs / 256, 256)) < 5
