"""Every kernel of this package, for one kind of device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from allmetal.platform.contract import AnyKernel
from allmetal_triton.ops.attention import TritonAttention
from allmetal_triton.ops.attention_input import TritonAttentionInput
from allmetal_triton.ops.decode_state import TritonDecodeState
from allmetal_triton.ops.gated_activation import TritonGatedActivation
from allmetal_triton.ops.int_linear import TritonIntLinear
from allmetal_triton.ops.linear import TritonLinear
from allmetal_triton.ops.moe import TritonMoE
from allmetal_triton.ops.rms_norm import TritonRMSNorm
from allmetal_triton.ops.sampling import TritonSampling
from allmetal_triton.target import Target


def kernels(target: Target) -> Mapping[str, Sequence[AnyKernel]]:
    """Op family -> kernels."""
    return {
        "attention": (TritonAttention(target),),
        "attention_input": (TritonAttentionInput(target),),
        "linear": (TritonLinear(target), TritonIntLinear(target)),
        "moe": (TritonMoE(target),),
        "rms_norm": (TritonRMSNorm(target),),
        "gated_activation": (TritonGatedActivation(target),),
        "decode_state": (TritonDecodeState(),),
        "sampling": (TritonSampling(target),),
    }
