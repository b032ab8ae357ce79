"""Every kernel of the provider."""

from __future__ import annotations

from collections.abc import Mapping

from allmetal.platform.contract import AnyKernel
from allmetal_triton.target import Target
from allmetal_xpu.vllm.attention import VllmAttention
from allmetal_xpu.vllm.elementwise import VllmGatedActivation, VllmRMSNorm
from allmetal_xpu.vllm.moe import VllmMoE


def kernels(target: Target) -> Mapping[str, tuple[AnyKernel, ...]]:
    """Op family -> kernels.  Nothing of the package is loaded before one is built."""
    return {
        "attention": (VllmAttention(),),
        "moe": (VllmMoE(target),),
        "rms_norm": (VllmRMSNorm(),),
        "gated_activation": (VllmGatedActivation(),),
    }
