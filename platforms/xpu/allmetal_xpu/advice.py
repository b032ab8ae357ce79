"""What suits an Intel GPU.  Nothing of it was measured: there was no device."""

from __future__ import annotations

from allmetal.platform.contract import Advice, DeviceInfo, ModelFacts

_SIZES = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128)
"""Sequences of a recorded step."""


def advise(device: DeviceInfo, model: ModelFacts) -> Advice:
    half = model.dtype in ("bfloat16", "float16")
    shared = device.traits.get("integrated") == "yes"
    return Advice(
        dtype=model.dtype if half else "bfloat16",
        dtype_reason=""
        if half
        else f"matrix units compute bfloat16 many times faster than {model.dtype}",
        block_size=64,
        max_num_batched_tokens=2048,
        max_num_seqs=max(_SIZES),
        # The memory of a GPU inside the processor is everybody's.
        kv_memory_fraction=0.5 if shared else 0.9,
        graph_sizes=_SIZES,
    )
