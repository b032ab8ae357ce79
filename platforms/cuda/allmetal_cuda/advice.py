"""What suits a GPU: its dtype, step sizes, and which sizes of step to record."""

from __future__ import annotations

from allmetal.platform.contract import Advice, DeviceInfo, ModelFacts

MAX_SEQS = 256
_LARGE = 40 << 30


def advise(device: DeviceInfo, model: ModelFacts) -> Advice:
    dtype, reason = _dtype(model.dtype)
    large = device.total_memory >= _LARGE
    return Advice(
        dtype=dtype,
        dtype_reason=reason,
        block_size=16,
        # A step of this many tokens runs at the speed of the matrix units; a longer one would
        # only keep those who decode waiting.
        max_num_batched_tokens=8192 if large else 2048,
        max_num_seqs=MAX_SEQS,
        kv_memory_fraction=0.9,
        graph_sizes=graph_sizes(MAX_SEQS),
    )


def _dtype(asked: str) -> tuple[str, str]:
    """(dtype, why).  `asked` is the checkpoint's."""
    if asked in ("bfloat16", "float16"):
        return asked, "the checkpoint's own"
    return "bfloat16", f"matrix units compute it many times faster than {asked}"


def graph_sizes(most: int) -> tuple[int, ...]:
    """Sequences a recorded step may have, up to `most`: close enough that padding costs little."""
    sizes = [1, 2, 4, *range(8, 129, 8), *range(144, 257, 16), *range(288, 513, 32)]
    return tuple(size for size in sizes if size <= most)
