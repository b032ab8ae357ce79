"""The tensors that hold cached keys and values."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch

from allmetal.errors import ConfigError
from allmetal.platform.kv import CacheLayout
from allmetal.platform.specs import AttentionOp, block_axis
from allmetal.runner.host_memory import zeroed_pages


def allocate_caches(
    layout: CacheLayout, ops: Sequence[AttentionOp], device: torch.device
) -> tuple[list[torch.Tensor], list[int]]:
    """One cache and one group index an attention layer.

    The i-th layers of all groups share memory, each seeing it in its own shape: a block belongs
    to one group at a time.
    """
    views: dict[int, tuple[int, tuple[int, ...], torch.dtype]] = {}
    sizes = [0] * layout.layers_per_group
    group_of: dict[int, int] = {}
    axes: dict[int, int] = {}
    for group_index, group in enumerate(layout.groups):
        dtype: torch.dtype = getattr(torch, group.spec.dtype)
        for place, layer in enumerate(group.layers):
            axis = block_axis(ops[layer].kv_layout)
            shape = ops[layer].cache_shape(layout.num_blocks)
            assert shape[axis] == layout.num_blocks, (shape, layout.num_blocks)
            if axes.setdefault(place, axis) != axis:
                raise _unlike(ops[layer].kv_layout)
            views[layer] = (place, shape, dtype)
            group_of[layer] = group_index
            sizes[place] = max(sizes[place], prod(shape) * dtype.itemsize)
    pool: dict[object, torch.Tensor] = {}
    caches = []
    for layer in range(len(ops)):
        place, shape, dtype = views[layer]
        if device.type == "cpu" or any(
            view != views[layer] for view in views.values() if view[0] == place
        ):
            if place not in pool:
                pool[place] = zeroed_bytes(sizes[place], device)
            caches.append(pool[place][: prod(shape) * dtype.itemsize].view(dtype).view(shape))
            continue
        # Of one kind they need no view of raw bytes, which a compiler would have to cast.
        if place not in pool:
            pool[place] = torch.zeros(shape, dtype=dtype, device=device)
        caches.append(pool[place])
    return caches, [group_of[layer] for layer in range(len(ops))]


def _unlike(kv_layout: str) -> ConfigError:
    """In shared memory one layer's block would lie over several of another's."""
    return ConfigError(
        f"layers that share the cache's memory keep it in orders that exclude each other: some in"
        f" {kv_layout}, some not",
        hint="--kernel attention=reference",
    )


def zeroed_bytes(size: int, device: torch.device) -> torch.Tensor:
    """[size] uint8 of zeros.  On the host the pages are taken when they are first written, so a
    large cache costs nothing before it is used."""
    if device.type != "cpu" or size == 0:
        return torch.zeros(size, dtype=torch.uint8, device=device)
    return zeroed_pages(size)
