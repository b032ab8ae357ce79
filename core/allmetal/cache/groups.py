"""Layers with equal needs share a block table; all groups draw on one pool."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from allmetal.errors import ConfigError
from allmetal.platform.kv import CacheLayout, KVGroup, KVSpec


def group_layers(specs: Sequence[KVSpec]) -> tuple[KVGroup, ...]:
    """Cut the layers into groups of one spec and nearly equal size, so that a block of any group
    takes the same bytes.

    The group size is the count of the rarest spec: 15 sliding and 3 full layers make five sliding
    groups and one full one.  Where that would waste more than a quarter of a group, layers of one
    spec stay together instead.
    """
    if not specs:
        return ()
    by_spec: dict[KVSpec, list[int]] = defaultdict(list)
    for layer, spec in enumerate(specs):
        by_spec[spec].append(layer)
    if len({spec.bytes_per_token for spec in by_spec}) > 1:
        raise ConfigError(
            "layers of this model keep differently sized keys and values, which one pool of equal "
            "blocks cannot hold"
        )
    size = min(map(len, by_spec.values()))
    largest = max(map(len, by_spec.values()))
    if size < largest < size * 1.25:
        size = largest
    groups = []
    for spec, layers in by_spec.items():
        num_groups = -(-len(layers) // size)
        groups += [
            KVGroup(spec=spec, layers=tuple(layers[i::num_groups])) for i in range(num_groups)
        ]
    return tuple(groups)


def layout_for(specs: Sequence[KVSpec], block_size: int, kv_bytes: int) -> CacheLayout:
    """As many blocks as `kv_bytes` hold, of a model that keeps anything.  Raises ConfigError if
    that is not even a handful."""
    groups = group_layers(specs)
    if not groups:
        return CacheLayout(num_blocks=1, block_size=block_size, groups=())
    one = CacheLayout(num_blocks=1, block_size=block_size, groups=groups)
    num_blocks = kv_bytes // one.block_bytes
    if num_blocks < 1 + len(groups):
        raise ConfigError(
            f"{kv_bytes / 2**20:.1f} MiB of cache memory hold {num_blocks} blocks of "
            f"{one.block_bytes / 2**20:.2f} MiB; at least {1 + len(groups)} are needed",
            hint="raise --kv-cache-memory or --memory-fraction, or lower --block-size",
        )
    return CacheLayout(num_blocks=num_blocks, block_size=block_size, groups=groups)


def blocks_by_group(layout: CacheLayout, num_tokens: int, chunk: int) -> list[int]:
    """Blocks a sequence of `num_tokens` holds at most in each group, computed `chunk` tokens at a
    time.  Behind a window only whole blocks can be given back, hence one block more."""
    size, needed = layout.block_size, []
    for group in layout.groups:
        kept = num_tokens
        if group.spec.window is not None:
            kept = min(kept, group.spec.window - 1 + chunk + size)
        needed.append(-(-kept // size))
    return needed


def max_tokens_held(layout: CacheLayout, chunk: int, at_most: int) -> int:
    """The longest sequence, up to `at_most`, that fits the pool alone."""
    usable = layout.num_blocks - 1
    low, high = 0, at_most
    while low < high:
        middle = (low + high + 1) // 2
        if sum(blocks_by_group(layout, middle, chunk)) <= usable:
            low = middle
        else:
            high = middle - 1
    return low
