"""The platform's kernels by family, those written for the device by hand first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from allmetal.platform.contract import AnyKernel, DeviceInfo
from allmetal.platform.reference import (
    attention_input,
    decode_state,
    gated_activation,
    rms_norm,
)
from allmetal_tpu import pallas
from allmetal_tpu.ops import attention, encoder_attention, linear, moe, sampling
from allmetal_tpu.ops.kernel import as_reference

_XLA: Mapping[str, Sequence[AnyKernel]] = {
    "attention": (attention.KERNEL,),
    "attention_input": (as_reference("xla_attention_input", attention_input.KERNEL),),
    "decode_state": (as_reference("xla_decode_state", decode_state.KERNEL),),
    "encoder_attention": (encoder_attention.KERNEL,),
    "gated_activation": (as_reference("xla_gated_activation", gated_activation.KERNEL),),
    "linear": (linear.KERNEL,),
    "moe": (moe.KERNEL,),
    "rms_norm": (as_reference("xla_rms_norm", rms_norm.KERNEL),),
    "sampling": (sampling.KERNEL,),
}


def xla_kernels() -> Mapping[str, Sequence[AnyKernel]]:
    """Those in plain torch."""
    return dict(_XLA)


def kernels(device: DeviceInfo, *, by_hand: bool = True) -> Mapping[str, Sequence[AnyKernel]]:
    """`by_hand`: with those in Pallas, which no other device can run."""
    first = pallas.kernels(device.arch) if by_hand else {}
    return {family: (*first.get(family, ()), *plain) for family, plain in _XLA.items()}
