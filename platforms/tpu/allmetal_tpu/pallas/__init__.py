"""Kernels written for the device with Pallas, JAX's language for kernels.

`jit` is the kernels, in JAX, which is imported when one is built and not before; `ops` offers them
as the platform's, and `bridge` is how torch calls them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from allmetal.platform.contract import AnyKernel
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
