"""Kernels written for the device with Pallas, JAX's language for kernels.

`jit` is the kernels, in JAX, which is imported when one is built and not before; `ops` offers them
as the platform's, and `bridge` is how torch calls them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from allmetal.platform.contract import AnyKernel, Capability, Native
from allmetal_tpu.pallas.bridge import Target
from allmetal_tpu.pallas.chips import CHIPS
from allmetal_tpu.pallas.ops.attention import PallasAttention
from allmetal_tpu.pallas.ops.attention_input import LanesAttentionInput
from allmetal_tpu.pallas.ops.linear import PallasLinear
from allmetal_tpu.pallas.ops.moe import PallasMoE


def kernels(arch: str, *, interpret: bool = False) -> Mapping[str, Sequence[AnyKernel]]:
    """Op family -> kernels, none for a generation that they were never compiled for."""
    chip = CHIPS.get(arch)
    if chip is None:
        return {}
    target = Target(chip=chip, interpret=interpret)
    return {
        "attention": (PallasAttention(target),),
        "attention_input": (LanesAttentionInput(),),
        "linear": (PallasLinear(target),),
        "moe": (PallasMoE(target),),
    }


def capabilities(arch: str) -> Mapping[str, Capability]:
    """What these kernels do natively, nothing where they cannot be called."""
    chip = CHIPS.get(arch)
    if chip is None or Target(chip=chip).refuse() is not None:
        return {}
    pages = {"page size": "a multiple of 16, of 32 with keys of 8 bits", "head_dim": "8 to 256"}
    attention = Native("ragged paged attention in Pallas", pages)
    widened = "widened next to the matrix unit"
    integers = "multiplied as integers" if chip.int8 else widened
    return {
        "kv_dtype.float8_e4m3fn": attention,
        "kv_dtype.float8_e5m2": attention,
        "attention.sliding_window": attention,
        "attention.soft_cap": attention,
        "attention.sinks": attention,
        "quant.int8": Native(f"Pallas, {widened}"),
        "quant.w8a8": Native(f"Pallas, {integers}"),
        "quant.fp8": Native(f"Pallas, {widened}"),
        "moe": Native("grouped products in Pallas"),
    }
