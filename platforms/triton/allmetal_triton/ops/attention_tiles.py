"""How attention is cut into tiles, by head size and by the memory a program may have."""

from __future__ import annotations

from dataclasses import dataclass

import triton

from allmetal.platform.kv import DTYPE_BYTES
from allmetal.platform.specs import AttentionSpec
from allmetal_triton.target import AttentionTile, Target

_SMALLEST_DOT = 16
_ADDED_AT_ONCE = 8192
"""Values of parts held in registers while they are added up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiles:
    """`m` rows and `n` keys a tile, `d` channels after padding, `rows` of m that can be real;
    `phases`: tiles seen in full are told apart; parts are added up `rows_at_once` rows of
    `parts_at_once` parts at a time.
    """

    m: int
    n: int
    d: int
    rows: int
    phases: bool
    num_warps: int
    num_stages: int

    @property
    def rows_at_once(self) -> int:
        return min(self.rows, _SMALLEST_DOT)

    @property
    def parts_at_once(self) -> int:
        bound = _ADDED_AT_ONCE if self.d <= 128 else _ADDED_AT_ONCE // 2
        return max(1, min(16, bound // (self.rows_at_once * self.d)))


def most_few_rows(spec: AttentionSpec, target: Target) -> int:
    """Up to here reading keys takes longer than multiplying them."""
    if chosen := _chosen(target.few_rows, spec):
        return chosen.m
    return 64 if spec.head_dim <= 256 else 32


def few_rows(spec: AttentionSpec, target: Target, rows: int) -> Tiles:
    """For items bound by reading the cache: small tiles, and many of them on their way."""
    d = triton.next_power_of_2(spec.head_dim)
    real = triton.next_power_of_2(rows)
    m = max(_SMALLEST_DOT, real)
    if chosen := _chosen(target.few_rows, spec):
        return _tiles(chosen, m, d, real, phases=False)
    n, fit = _keys_and_stages(spec, target.shared_memory // 2, m, 64 if d <= 128 else 32, 3)
    # A loop of s stages keeps s - 1 tiles in shared memory.
    return Tiles(m=m, n=n, d=d, rows=real, phases=False, num_warps=4, num_stages=fit + 1)


def many_rows(spec: AttentionSpec, target: Target) -> Tiles:
    """For items bound by arithmetic: as many rows as the registers hold."""
    d = triton.next_power_of_2(spec.head_dim)
    if chosen := _chosen(target.many_rows, spec):
        return _tiles(chosen, chosen.m, d, chosen.m, phases=True)
    wide = target.dot_rows >= 64
    m = min(128 if wide else 64, 16384 // d)
    n, num_stages = _keys_and_stages(spec, target.shared_memory, m, 64 if wide else 32, 3)
    num_warps = 8 if d > (64 if wide else 128) else 4
    return Tiles(m=m, n=n, d=d, rows=m, phases=True, num_warps=num_warps, num_stages=num_stages)


def _chosen(tiles: tuple[AttentionTile, ...], spec: AttentionSpec) -> AttentionTile | None:
    """The first that is large enough, where the device has any."""
    if DTYPE_BYTES[spec.dtype] != 2:
        return None
    return next((tile for tile in tiles if spec.head_dim <= tile.head_dim), None)


def _tiles(chosen: AttentionTile, m: int, d: int, rows: int, *, phases: bool) -> Tiles:
    return Tiles(
        m=m,
        n=chosen.n,
        d=d,
        rows=rows,
        phases=phases,
        num_warps=chosen.num_warps,
        num_stages=chosen.num_stages,
    )


def _keys_and_stages(
    spec: AttentionSpec, memory: int, m: int, wanted: int, most_stages: int
) -> tuple[int, int]:
    """At most `wanted` keys a tile such that rows and two tiles fit `memory` bytes, and how many
    tiles do."""
    d = triton.next_power_of_2(spec.head_dim)
    left = memory - m * d * DTYPE_BYTES[spec.dtype]
    pair = 2 * wanted * d * DTYPE_BYTES[spec.kv_dtype]
    n = wanted
    while n > _SMALLEST_DOT and 2 * pair > left:
        n, pair = n // 2, pair // 2
    return n, max(1, min(most_stages, left // pair))
