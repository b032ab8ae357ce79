"""The platform's kernels by family: NVIDIA's own first, then Triton's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from allmetal.platform.contract import AnyKernel, DeviceInfo
from allmetal_cuda.capabilities import BLACKWELL, FP8_SINCE, HOPPER, compute_capability
from allmetal_cuda.ops.linear import CublasLinear
from allmetal_triton.kernels import kernels as triton_kernels
from allmetal_triton.target import FLOAT_DTYPES, Target

_SHARED_MEMORY = {80: 166_912, 86: 101_376, 87: 166_912, 89: 101_376, 90: 232_448, 100: 232_448}
"""Bytes a block may have.  Source: CUDA C++ programming guide, compute capabilities."""
_LEAST_SHARED_MEMORY = 101_376


def kernels(device: DeviceInfo) -> Mapping[str, Sequence[AnyKernel]]:
    here = target(device)
    shared = triton_kernels(here)
    own: dict[str, tuple[AnyKernel, ...]] = {"linear": (CublasLinear(),)}
    if HOPPER <= _capability(device) < BLACKWELL:
        from allmetal_cuda.ops.hopper_attention import HopperAttention
        from allmetal_cuda.ops.hopper_float8 import HopperFloat8Linear
        from allmetal_cuda.ops.hopper_float8_blocks import HopperFloat8Blocks
        from allmetal_cuda.ops.hopper_linear import HopperLinear

        own["attention"] = (HopperAttention(here),)
        float8 = HopperFloat8Linear(here), HopperFloat8Blocks(here)
        own["linear"] = (HopperLinear(here), *float8, *own["linear"])
    return {family: (*own.get(family, ()), *shared[family]) for family in shared}


def target(device: DeviceInfo) -> Target:
    capability = _capability(device)
    return Target(
        num_cores=_num_multiprocessors,
        shared_memory=_SHARED_MEMORY.get(capability, _LEAST_SHARED_MEMORY),
        # Hopper's and data-center Blackwell's matrix units read shared memory by themselves.
        dot_rows=64 if HOPPER <= capability < 120 else 16,
        early=capability >= HOPPER,
        cache_dtypes=(
            *FLOAT_DTYPES,
            *(("float8_e4m3fn", "float8_e5m2") if capability >= FP8_SINCE else ()),
        ),
    )


def _capability(device: DeviceInfo) -> int:
    """90 for Hopper.  Asks the device only if probing could not tell."""
    known = compute_capability(device)
    if known is not None:
        return known
    major, minor = torch.cuda.get_device_capability()
    return 10 * major + minor


def _num_multiprocessors() -> int:
    return torch.cuda.get_device_properties(torch.cuda.current_device()).multi_processor_count
