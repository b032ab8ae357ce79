"""The platform's kernels by family: vllm-xpu-kernels where it is, Triton's, and oneDNN."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from allmetal.platform.contract import AnyKernel, DeviceInfo
from allmetal_triton.kernels import kernels as triton_kernels
from allmetal_triton.target import Target
from allmetal_xpu.vllm.kernels import kernels as vllm_kernels

LOCAL_MEMORY = 131_072
"""Bytes of shared local memory of an Xe core.  Source: Intel's GPU optimisation guide, Xe-HPC and
Xe2."""


def kernels(device: DeviceInfo) -> Mapping[str, Sequence[AnyKernel]]:
    here = target(device)
    shared, vendor = triton_kernels(here), vllm_kernels(here)
    return {family: (*vendor.get(family, ()), *shared[family]) for family in shared}


def target(device: DeviceInfo) -> Target:
    return Target(num_cores=_num_xe_cores, shared_memory=LOCAL_MEMORY)


def _num_xe_cores() -> int:
    """torch counts execution units, of which a core has eight."""
    facts = torch.xpu.get_device_properties(torch.xpu.current_device())
    return max(1, int(facts.gpu_eu_count) // 8)
