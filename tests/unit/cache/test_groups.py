from __future__ import annotations

import pytest

from allmetal.cache.groups import blocks_by_group, group_layers, layout_for, max_tokens_held
from allmetal.errors import ConfigError
from allmetal.platform.kv import KVSpec

FULL = KVSpec(kind="full", num_kv_heads=2, head_dim=8, dtype="bfloat16")
SLIDING = KVSpec(kind="sliding_window", num_kv_heads=2, head_dim=8, dtype="bfloat16", window=32)


def test_equal_layers_are_one_group() -> None:
    [group] = group_layers([FULL] * 5)
    assert group.layers == (0, 1, 2, 3, 4)


def test_fifteen_sliding_and_three_full_layers_are_six_groups_of_three() -> None:
    groups = group_layers(([SLIDING] * 5 + [FULL]) * 3)
    assert [len(group.layers) for group in groups] == [3] * 6
    assert sum(group.spec == SLIDING for group in groups) == 5
    assert sorted(layer for group in groups for layer in group.layers) == list(range(18))


def test_nearly_equal_counts_stay_together() -> None:
    assert [len(group.layers) for group in group_layers([SLIDING] * 12 + [FULL] * 11)] == [12, 11]


def test_layers_of_unequal_size_are_refused() -> None:
    wide = KVSpec(kind="full", num_kv_heads=2, head_dim=16, dtype="bfloat16")
    with pytest.raises(ConfigError, match="differently sized"):
        group_layers([FULL, wide])


def test_the_layout_fills_the_memory() -> None:
    layout = layout_for([FULL] * 4, block_size=16, kv_bytes=1 << 20)
    per_token = 2 * 2 * 8 * 2 * 4
    assert layout.block_bytes == 16 * per_token
    assert layout.num_blocks == (1 << 20) // (16 * per_token)


def test_memory_for_no_block_is_an_error_with_a_hint() -> None:
    with pytest.raises(ConfigError, match="--kv-cache-memory"):
        layout_for([FULL], block_size=16, kv_bytes=10)


def test_a_window_bounds_what_a_sequence_holds() -> None:
    layout = layout_for([FULL, SLIDING], block_size=16, kv_bytes=1 << 20)
    assert blocks_by_group(layout, 1600, chunk=16) == [100, 4]
    assert blocks_by_group(layout, 20, chunk=16) == [2, 2]


@pytest.mark.parametrize("specs", [[FULL], [SLIDING], [FULL, SLIDING]])
def test_the_longest_sequence_just_fits(specs: list[KVSpec]) -> None:
    layout = layout_for(specs, block_size=16, kv_bytes=20 * 16 * FULL.bytes_per_token)
    longest = max_tokens_held(layout, chunk=64, at_most=10_000)
    assert sum(blocks_by_group(layout, longest, 64)) <= layout.num_blocks - 1
    if longest < 10_000:
        assert sum(blocks_by_group(layout, longest + 1, 64)) > layout.num_blocks - 1
