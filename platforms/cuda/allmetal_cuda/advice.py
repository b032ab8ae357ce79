"""What suits a GPU: its dtype, step sizes, and which sizes of step to record."""

from __future__ import annotations

from allmetal.platform.contract import Advice, DeviceInfo, ModelFacts

_LARGE, _HUGE = 40 << 30, 70 << 30
_SECONDS_TO_LAUNCH_A_LAYER = 6e-4
"""Ten kernels from Python; 4.4e-4 were measured of steps with few sequences, 9e-4 with many."""
_OPERATIONS_PER_SECOND = 5e14
"""Of the fastest device there is: a slower one computes longer, and records sizes in vain."""


def advise(device: DeviceInfo, model: ModelFacts) -> Advice:
    dtype, reason = _dtype(model.dtype)
    large = device.total_memory >= _LARGE
    most = max_seqs(device)
    return Advice(
        dtype=dtype,
        dtype_reason=reason,
        block_size=16,
        # A step of this many tokens runs at the speed of the matrix units; a longer one would
        # only keep those who decode waiting.
        max_num_batched_tokens=8192 if large else 2048,
        max_num_seqs=most,
        kv_memory_fraction=0.9,
        graph_sizes=graph_sizes(most),
        graph_tokens=graph_tokens(model),
    )


def max_seqs(device: DeviceInfo) -> int:
    """Each step reads the weights once for all its sequences, so many should share it; but their
    state and logits take memory, some 4 GiB for the most of them."""
    return 1024 if device.total_memory >= _HUGE else 256


def _dtype(asked: str) -> tuple[str, str]:
    """(dtype, why).  `asked` is the checkpoint's."""
    if asked in ("bfloat16", "float16"):
        return asked, "the checkpoint's own"
    return "bfloat16", f"matrix units compute it many times faster than {asked}"


def graph_sizes(most: int) -> tuple[int, ...]:
    """Sequences a recorded step may have, up to `most`: close enough that padding costs little."""
    sizes = [1, 2, 4, *range(8, 129, 8), *range(144, 257, 16), *range(288, 513, 32)]
    sizes += range(640, 1025, 128)
    return tuple(size for size in sizes if size <= most)


def graph_tokens(model: ModelFacts) -> tuple[int, ...]:
    """Tokens a recorded step with prompts may have: as many as are computed before a step of the
    same layers could be launched by hand.  Padding costs nothing there, so the sizes are few."""
    operations = 2 * model.parameter_bytes / 2  # of a token, if a parameter has two bytes
    most = model.num_layers * _SECONDS_TO_LAUNCH_A_LAYER * _OPERATIONS_PER_SECOND / operations
    sizes = (32, 64, 128, 256, 384, 512, 768, 1024, 1280, 1536, 2048, 2560, 3072, 4096, 6144, 8192)
    return tuple(size for size in sizes if size <= 1.5 * most)
