"""A pure torch kernel for every spec: it defines what is right, on any torch device.

It is also the last resort of every platform, so a new one works before it has a kernel.
Sums run in float32 and are rounded to the spec's dtype once; with dtype float64 they run in
float64, which is how other kernels are measured.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from allmetal.platform.contract import AnyKernel
from allmetal.platform.reference import (
    attention,
    attention_input,
    decode_state,
    encoder_attention,
    gated_activation,
    linear,
    moe,
    rms_norm,
    sampling,
)

_KERNELS: Mapping[str, Sequence[AnyKernel]] = {
    "attention": (attention.KERNEL,),
    "attention_input": (attention_input.KERNEL,),
    "decode_state": (decode_state.KERNEL,),
    "encoder_attention": (encoder_attention.KERNEL,),
    "gated_activation": (gated_activation.KERNEL,),
    "linear": (linear.KERNEL,),
    "moe": (moe.KERNEL,),
    "rms_norm": (rms_norm.KERNEL,),
    "sampling": (sampling.KERNEL,),
}


def kernels() -> Mapping[str, Sequence[AnyKernel]]:
    """Op family -> its reference kernel."""
    return dict(_KERNELS)
