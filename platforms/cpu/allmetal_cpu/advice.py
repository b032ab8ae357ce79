"""What suits a host: its dtype, and a share of memory that leaves the machine usable."""

from __future__ import annotations

from allmetal.platform.contract import Advice, DeviceInfo, Memory, ModelFacts
from allmetal_cpu.probe import native_bfloat16

MAX_KV_MEMORY = 8 << 30
MAX_SHARE = 0.7
MAX_SEQUENCES = 64


def advise(device: DeviceInfo, model: ModelFacts, memory: Memory) -> Advice:
    dtype, reason = _dtype(device, model.dtype)
    return Advice(
        dtype=dtype,
        dtype_reason=reason,
        block_size=32,
        # A step of 512 tokens already runs at the speed of the matrix units, and a longer one
        # keeps everybody else waiting.
        max_num_batched_tokens=512,
        max_num_seqs=MAX_SEQUENCES,
        kv_memory_fraction=_memory_share(model, memory),
        # All, since a step computes no padding then, and is recorded when it first comes.
        graph_sizes=tuple(range(1, MAX_SEQUENCES + 1)),
    )


def _dtype(device: DeviceInfo, asked: str) -> tuple[str, str]:
    """(dtype, why).  `asked` is the checkpoint's."""
    native = native_bfloat16(device)
    if asked == "float32":
        return "float32", "the checkpoint's own"
    if native is None:
        return "float32", f"this CPU has no instructions for {asked}; emulating them is slower"
    if asked == "bfloat16":
        return "bfloat16", f"the checkpoint's own; the CPU has {native}"
    return "bfloat16", f"the CPU has {native}, and nothing as fast for {asked}"


def _memory_share(model: ModelFacts, memory: Memory) -> float:
    """Weights and at most MAX_KV_MEMORY of cache: other programs live here too."""
    if not memory.free:
        return MAX_SHARE
    wanted = (model.parameter_bytes + MAX_KV_MEMORY) / memory.free
    return round(min(MAX_SHARE, wanted), 3)
