"""Every kernel of the provider."""

from __future__ import annotations

from collections.abc import Mapping

from allmetal.platform.contract import AnyKernel
from allmetal_rocm.aiter.attention import AiterAttention
from allmetal_rocm.aiter.linear import AiterInt8Linear
from allmetal_rocm.aiter.moe import AiterMoE
from allmetal_rocm.aiter.rms_norm import AiterRMSNorm
from allmetal_triton.target import Target


def kernels(arch: str, target: Target) -> Mapping[str, tuple[AnyKernel, ...]]:
    """Op family -> kernels.  Nothing of the package is imported before one is built."""
    return {
        "attention": (AiterAttention(arch),),
        "linear": (AiterInt8Linear(arch, target),),
        "moe": (AiterMoE(arch, target),),
        "rms_norm": (AiterRMSNorm(arch),),
    }
