"""What suits a TPU.  Nothing of it was measured: there was no device."""

from __future__ import annotations

from allmetal.platform.contract import Advice, DeviceInfo, ModelFacts
from allmetal_tpu.generations import generation

_LARGE = 30 << 30


def advise(device: DeviceInfo, model: ModelFacts) -> Advice:
    """Pages are whole tiles of the cache's layout: 16 rows of bfloat16, and more of them make
    fewer and longer copies."""
    known = generation(device.arch)
    memory = device.total_memory or (known.device_memory if known is not None else 0)
    large = memory >= _LARGE
    most_seqs, most_tokens = (256, 2048) if large else (64, 1024)
    return Advice(
        dtype="bfloat16",
        dtype_reason="matrix units multiply it"
        if model.dtype == "bfloat16"
        else f"matrix units multiply bfloat16, and {model.dtype} in several passes",
        block_size=32,
        max_num_batched_tokens=most_tokens,
        max_num_seqs=most_seqs,
        graph_sizes=_powers(most_seqs),
        graph_tokens=_powers(most_tokens, first=16),
        static_shapes=True,
    )


def _powers(most: int, first: int = 1) -> tuple[int, ...]:
    """Each is a program to be compiled, so there are few."""
    return tuple(1 << n for n in range((first - 1).bit_length(), most.bit_length()))
