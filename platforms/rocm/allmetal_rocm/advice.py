"""What suits an AMD GPU.  Nothing of it was measured: there was no device."""

from __future__ import annotations

from allmetal.platform.contract import Advice, DeviceInfo, ModelFacts

_LARGE = 60 << 30
"""Bytes: an Instinct, not a card for a desk."""


def advise(device: DeviceInfo, model: ModelFacts) -> Advice:
    half = model.dtype in ("bfloat16", "float16")
    large = device.total_memory >= _LARGE
    return Advice(
        dtype=model.dtype if half else "bfloat16",
        dtype_reason=""
        if half
        else f"matrix units compute bfloat16 many times faster than {model.dtype}",
        block_size=16,
        max_num_batched_tokens=8192 if large else 2048,
        max_num_seqs=512 if large else 128,
        graph_sizes=tuple(_sizes(512 if large else 128)),
    )


def _sizes(most: int) -> list[int]:
    """Sequences of a recorded step: close enough that padding costs little."""
    sizes = [1, 2, 4, *range(8, 129, 8), *range(144, 257, 16), *range(288, 513, 32)]
    return [size for size in sizes if size <= most]
