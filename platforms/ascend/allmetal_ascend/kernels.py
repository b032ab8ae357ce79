"""The platform's kernels by family: torch_npu's operators, in the contract's terms.

What they lack, the reference does on the same tensors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from allmetal.platform.contract import AnyKernel, DeviceInfo
from allmetal_ascend import chips
from allmetal_ascend.ops.attention import NpuAttention
from allmetal_ascend.ops.attention_input import NpuAttentionInput
from allmetal_ascend.ops.gated_activation import NpuGatedActivation
from allmetal_ascend.ops.int8 import NpuInt8
from allmetal_ascend.ops.linear import NpuLinear
from allmetal_ascend.ops.moe import NpuMoE
from allmetal_ascend.ops.rms_norm import NpuRMSNorm
from allmetal_ascend.ops.sampling import NpuSampling

_USUAL = chips.A2


def kernels(device: DeviceInfo) -> Mapping[str, Sequence[AnyKernel]]:
    chip = chips.of(device.arch) or _USUAL
    return {
        "attention": (NpuAttention(chip),),
        "attention_input": (NpuAttentionInput(chip),),
        "linear": (NpuInt8(chip), NpuLinear(chip)),
        "moe": (NpuMoE(chip),),
        "rms_norm": (NpuRMSNorm(chip),),
        "gated_activation": (NpuGatedActivation(chip),),
        "sampling": (NpuSampling(),),
    }
