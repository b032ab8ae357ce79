"""The platform's kernels by family: hipBLAS through torch, and Triton's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from allmetal.platform.contract import AnyKernel, DeviceInfo
from allmetal_rocm.arch import ARCHS, plain
from allmetal_triton.kernels import kernels as triton_kernels
from allmetal_triton.target import FLOAT_DTYPES, Target

_USUAL = ARCHS["gfx942"]


def kernels(device: DeviceInfo) -> Mapping[str, Sequence[AnyKernel]]:
    return triton_kernels(target(device))


def target(device: DeviceInfo) -> Target:
    """Keys and values may be kept in 8 bits where the unit reads the OCP's formats, which are the
    ones that torch names without a suffix."""
    arch = ARCHS.get(plain(device.arch), _USUAL)
    narrow = ("float8_e4m3fn", "float8_e5m2") if arch.float8 == "ocp" else ()
    return Target(
        num_cores=_num_compute_units,
        shared_memory=arch.lds,
        cache_dtypes=(*FLOAT_DTYPES, *narrow),
    )


def _num_compute_units() -> int:
    return torch.cuda.get_device_properties(torch.cuda.current_device()).multi_processor_count
