"""The platform's kernels by family: AMD's own where they are installed, Triton's, and hipBLAS."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from allmetal.platform.contract import AnyKernel, DeviceInfo
from allmetal_rocm.aiter.kernels import kernels as aiter_kernels
from allmetal_rocm.arch import ARCHS, plain
from allmetal_rocm.ops.scaled_linear import ScaledLinear
from allmetal_rocm.tuning import FEW_ROWS, MANY_ROWS
from allmetal_triton.kernels import kernels as triton_kernels
from allmetal_triton.target import FLOAT_DTYPES, FNUZ, Target

_USUAL = ARCHS["gfx942"]


def kernels(device: DeviceInfo) -> Mapping[str, Sequence[AnyKernel]]:
    here = target(device)
    shared, vendor = triton_kernels(here), aiter_kernels(plain(device.arch), here)
    own: dict[str, tuple[AnyKernel, ...]] = {"linear": (ScaledLinear(plain(device.arch), here),)}
    return {
        family: (*vendor.get(family, ()), *own.get(family, ()), *shared[family])
        for family in shared
    }


def target(device: DeviceInfo) -> Target:
    """Keys and values may be kept in 8 bits everywhere: what a unit has no instructions for, the
    compiler writes out."""
    arch = ARCHS.get(plain(device.arch), _USUAL)
    return Target(
        num_cores=_num_compute_units,
        shared_memory=arch.lds,
        cache_dtypes=(*FLOAT_DTYPES, *FNUZ),
        fnuz=arch.float8 == "fnuz",
        few_rows=FEW_ROWS.get(arch.family, ()),
        many_rows=MANY_ROWS.get(arch.family, ()),
    )


def _num_compute_units() -> int:
    return torch.cuda.get_device_properties(torch.cuda.current_device()).multi_processor_count
