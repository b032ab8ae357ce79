"""The platform's kernels by family: the native ones first, then torch's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from allmetal.platform.contract import AnyKernel, DeviceInfo
from allmetal_cpu.native.attention import ATTENTION
from allmetal_cpu.native.attention_input import ATTENTION_INPUT
from allmetal_cpu.native.decode_state import DECODE_STATE
from allmetal_cpu.native.gated_activation import GATED_ACTIVATION
from allmetal_cpu.native.linear import LINEAR
from allmetal_cpu.native.moe import MOE
from allmetal_cpu.native.rms_norm import RMS_NORM
from allmetal_cpu.native.sampling import SAMPLING
from allmetal_cpu.ops.attention import TorchPagedAttention
from allmetal_cpu.ops.attention_input import TorchAttentionInput
from allmetal_cpu.ops.encoder_attention import TorchEncoderAttention
from allmetal_cpu.ops.gated_activation import TorchGatedActivation
from allmetal_cpu.ops.linear import ExpandedLinear, OneDNNLinear, TorchInt8Linear
from allmetal_cpu.ops.moe import GroupedExperts
from allmetal_cpu.ops.rms_norm import TorchRMSNorm
from allmetal_cpu.ops.sampling import TorchSampling


def kernels(device: DeviceInfo) -> Mapping[str, Sequence[AnyKernel]]:
    linear = (LINEAR, OneDNNLinear(), TorchInt8Linear(), ExpandedLinear())
    activation = (GATED_ACTIVATION, TorchGatedActivation())
    return {
        "attention": (ATTENTION, TorchPagedAttention()),
        "attention_input": (ATTENTION_INPUT, TorchAttentionInput()),
        "decode_state": (DECODE_STATE,),
        "encoder_attention": (TorchEncoderAttention(),),
        "linear": linear,
        "moe": (
            MOE,
            GroupedExperts(linear, activation),
        ),
        "rms_norm": (RMS_NORM, TorchRMSNorm()),
        "gated_activation": activation,
        "sampling": (SAMPLING, TorchSampling()),
    }
