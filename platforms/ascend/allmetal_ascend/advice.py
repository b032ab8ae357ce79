"""What suits an Ascend NPU.  Nothing of it was measured: there was no device."""

from __future__ import annotations

from allmetal.platform.contract import Advice, DeviceInfo, ModelFacts
from allmetal_ascend import chips

BLOCK_SIZE = 128
"""Tokens: what the fused attention wants of a paged cache, a multiple of it and at most 512."""


def advise(device: DeviceInfo, model: ModelFacts) -> Advice:
    chip = chips.of(device.arch)
    wide = chip is None or chip.bfloat16
    favourite = "bfloat16" if wide else "float16"
    half = model.dtype == "float16" or (model.dtype == "bfloat16" and wide)
    fused = chip is None or chip.fused_attention
    return Advice(
        dtype=model.dtype if half else favourite,
        dtype_reason="the checkpoint's own"
        if half
        else f"the matrix unit computes it many times faster than {model.dtype}",
        block_size=BLOCK_SIZE,
        max_num_batched_tokens=8192 if fused else 2048,
        max_num_seqs=256 if fused else 64,
        graph_sizes=_sizes(256) if fused else (),
    )


def _sizes(most: int) -> tuple[int, ...]:
    """Sequences of a recorded step: few, since each keeps a place for its lengths in every layer,
    and there is a limit on what all of a device's recordings may hold."""
    return tuple(size for size in (1, 2, 4, *range(8, 65, 8), *range(96, most + 1, 32)))
