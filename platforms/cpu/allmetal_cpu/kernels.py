"""The platform's kernels by family: the native ones first, then torch's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from allmetal.platform.contract import AnyKernel, DeviceInfo
from allmetal_cpu.ops.attention import TorchPagedAttention
from allmetal_cpu.ops.attention_input import TorchAttentionInput
from allmetal_cpu.ops.gated_activation import TorchGatedActivation
from allmetal_cpu.ops.linear import ExpandedLinear, OneDNNLinear, TorchInt8Linear
from allmetal_cpu.ops.rms_norm import TorchRMSNorm
from allmetal_cpu.ops.sampling import TorchSampling


def kernels(device: DeviceInfo) -> Mapping[str, Sequence[AnyKernel]]:
    return {
        "attention": (TorchPagedAttention(),),
        "attention_input": (TorchAttentionInput(),),
        "linear": (OneDNNLinear(), TorchInt8Linear(), ExpandedLinear()),
        "rms_norm": (TorchRMSNorm(),),
        "gated_activation": (TorchGatedActivation(),),
        "sampling": (TorchSampling(),),
    }
